"""Trajectories seen as turns: the model, readers, features, profile, splits."""
