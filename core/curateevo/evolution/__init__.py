"""The decision core: pure functions from what is seen to what should be."""
