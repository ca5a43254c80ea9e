"""Trajectories that are labelled a success."""

from curateevo.policy import api

POLICY_API = 1
PARAMS = {"rl_tasks": 200}


def select(corpus, ctx):
    return api.keep_successes(corpus.items())


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
