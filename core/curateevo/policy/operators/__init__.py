"""Operators on items: pure, deterministic, each recording its name in the lineage of what it touches."""
