"""ACEBench-Agent: scenarios, checker and users' prompts of the package `evalscope`, on data that the user brings.

`dataset.py` has the tasks, made of the data's files and of the prompts that `load.py` prints; `worlds.py` the
environments, `milestones.py` the calls that a good run makes, `suite.py` the suite. The package's own code runs in a
process of its own alone (`load.py`) or in the enclosure (`inside.py`), and never as a whole: `parts.py`.
"""
