"""The library: curation policies, the decision core, and the loop on one machine."""
