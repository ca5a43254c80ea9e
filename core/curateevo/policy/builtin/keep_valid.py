"""Everything but trajectories with malformed calls or calls that break their tool's schema."""

from curateevo.policy import api

POLICY_API = 1
PARAMS = {"rl_tasks": 200}


def select(corpus, ctx):
    return api.keep_valid(corpus.items())


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
