"""Evaluation suites: where tasks come from, what a call answers, and how an episode is scored."""
