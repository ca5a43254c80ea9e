"""A random sample with as many turns as the successes have: what is selection worth beyond size?"""

from curateevo.policy import api

POLICY_API = 1
PARAMS = {"rl_tasks": 200, "turns": 0}


def select(corpus, ctx):
    items = corpus.items()
    turns = PARAMS["turns"] or sum(len(i.turns) for i in api.keep_successes(items))
    return api.sample_turns(items, turns=turns, seed_order=[ctx.rng.random() for _ in items])


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
