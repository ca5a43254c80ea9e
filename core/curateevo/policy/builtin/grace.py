"""GRACE (arXiv 2605.13130): the trajectories whose turns' gradients, on the base model, lead where successes lead.

Needs spec.corpus.grace. Simplified: the family's successes stand for the answer, what is kept is ranked within the
family, and the weight of the two scores is ours: of the paper only the abstract was at hand.
"""

from math import ceil

from curateevo.policy import api

POLICY_API = 1
PARAMS = {"rl_tasks": 200, "share": 0.2, "consistency": 0.5}


def select(corpus, ctx):
    items = corpus.items()
    scores = api.score_rank(items, api.score_grace(items, consistency=PARAMS["consistency"]))
    return api.keep_top(items, scores, count=ceil(PARAMS["share"] * len(items)))


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
