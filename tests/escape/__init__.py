"""The wall around policies, tried: attacks, honest policies, and the places where both are run. See docs/sandbox.md."""
