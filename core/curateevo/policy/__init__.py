"""Policies: what one may use, the gate that checks it, the sandbox that runs it, and the built-in ones."""
