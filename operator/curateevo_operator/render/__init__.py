"""Pure builders of Kubernetes objects: frozen values in, manifests as plain dicts out."""
