"""The artifact store: immutable objects, one write-once decision per version, one pointer moved by compare-and-swap."""
