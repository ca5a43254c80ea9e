"""BFCL-V4, the Berkeley Function Calling Leaderboard: data and checkers of the package `bfcl-eval` (Apache-2.0).

`categories.py` says what is supported; `dataset.py` has the tasks, read by `load.py` in a process of its own;
`worlds.py` the environments, `suite.py` the suite. The package's own code runs in the enclosure alone: `inside.py`.
"""
