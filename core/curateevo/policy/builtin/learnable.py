"""Successes for SFT, and for RL the tasks that are solved now and then: 0 < p < 1, ranked by p(1 - p).

After Foster et al. 2025 (arXiv 2502.12272). Simplified: p is the pass rate in the corpus, by task where a task has
several attempts, else by family, not that of the model in training.
"""

from curateevo.policy import api

POLICY_API = 1
PARAMS = {"rl_tasks": 200, "rl_items": 400}


def select(corpus, ctx):
    return api.keep_successes(corpus.items())


def refine(items, ctx):
    return items


def augment(items, ctx):
    return items


def build_sft(items, ctx):
    return items


def build_rl(items, ctx):
    """Tasks of the most learnable items; those that fail count as well."""
    everything = items.corpus.items()
    for by in ("task_id", "family"):
        scores = api.score_learnability(everything, ctx, by=by)
        mixed = api.keep_between(everything, scores, low=1e-9)
        if len(mixed):
            top = api.keep_top(mixed, api.score_learnability(mixed, ctx, by=by), count=PARAMS["rl_items"])
            return api.rl_tasks(top, ctx, count=PARAMS["rl_tasks"])
    return ()


def build_memory(items, ctx):
    return ()


def prune(resources, ctx):
    return resources
