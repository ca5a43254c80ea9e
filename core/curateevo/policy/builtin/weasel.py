"""Weasel (arXiv 2605.20291): of successful runs, train on the important and diverse steps; cut what they do not need.

Simplified: word overlap in place of BERTScore, no reasoning written anew; tool results are cut where Weasel cuts pages.
"""

from curateevo.policy import api

POLICY_API = 1
PARAMS = {"rl_tasks": 200, "share": 0.5, "diversity": 1.0, "max_result_chars": 600}


def select(corpus, ctx):
    return api.keep_successes(corpus.items())


def refine(items, ctx):
    items = api.pick_steps(items, share=PARAMS["share"], diversity=PARAMS["diversity"])
    return api.shorten_results(items, max_chars=PARAMS["max_result_chars"])


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
