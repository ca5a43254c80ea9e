"""What the shells of one machine and of the cluster share: seeing through the store, and acting on it."""
