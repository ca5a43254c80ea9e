"""toolworld: a small made-up world in which curation decides what a tiny agent learns. See README.md."""
