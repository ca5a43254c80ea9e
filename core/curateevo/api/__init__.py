"""The API: custom resources, stage requests and manifests, and errors, as typed models."""
