"""The tool-calling episode loop, the ways to reach a model, and memory retrieval."""
