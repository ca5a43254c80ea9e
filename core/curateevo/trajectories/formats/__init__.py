"""Readers of trajectory formats, one module each, and the rows of a file with their line numbers."""
