"""Successful runs as they are, the short ones."""

from curateevo.policy import api

POLICY_API = 1
PARAMS = {"max_turns": 10, "rl_tasks": 6}


def select(corpus, ctx):
    return api.keep_short(api.keep_successes(corpus.items()), max_turns=PARAMS["max_turns"])


def refine(items, ctx):
    return items


def augment(items, ctx):
    return items


def build_sft(items, ctx):
    return items


def build_rl(items, ctx):
    return api.rl_next_action(items, ctx, count=PARAMS["rl_tasks"])


def build_memory(items, ctx):
    return ()


def prune(resources, ctx):
    return resources
