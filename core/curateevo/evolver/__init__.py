"""From failures to a rewritten policy: diagnosis, patches, proposers."""
