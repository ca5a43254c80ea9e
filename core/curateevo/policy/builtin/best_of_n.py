"""Best-of-N at equal budget: each task's best attempts, in as many turns as the successes have.

Rejection sampling as in RAFT (Dong et al. 2023, arXiv 2304.06767), which samples N answers and fine-tunes on the one
with the highest reward. Simplified: the N attempts are those of the corpus, the reward is that of the source.
"""

from curateevo.policy import api

POLICY_API = 1
PARAMS = {"rl_tasks": 200, "per_task": 1, "turns": 0}


def select(corpus, ctx):
    items = corpus.items()
    turns = PARAMS["turns"] or sum(len(i.turns) for i in api.keep_successes(items))
    best = api.best_of(items, api.score_outcome(items), count=PARAMS["per_task"])
    return api.keep_top(best, api.score_outcome(best), turns=turns)


def refine(items, ctx):
    return items


def augment(items, ctx):
    return items


def build_sft(items, ctx):
    return items


def build_rl(items, ctx):
    return api.rl_tasks(items, ctx, count=PARAMS["rl_tasks"])


def build_memory(items, ctx):
    return ()


def prune(resources, ctx):
    return resources
