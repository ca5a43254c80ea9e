"""Successful runs without the calls that led nowhere; facts that tools told become notes."""

from curateevo.policy import api

POLICY_API = 1
PARAMS = {"max_turns": 10, "rl_tasks": 6, "notes": 50}


def select(corpus, ctx):
    return api.keep_short(api.keep_successes(corpus.items()), max_turns=PARAMS["max_turns"])


def refine(items, ctx):
    items = api.drop_unused_calls(api.fold_repeats(items))
    ctx.metric("turns_left", sum(len(item.turns) for item in items))
    return items


def augment(items, ctx):
    return items


def build_sft(items, ctx):
    return items


def build_rl(items, ctx):
    return api.rl_next_action(items, ctx, count=PARAMS["rl_tasks"])


def build_memory(items, ctx):
    return api.memory_facts(items.corpus, limit=PARAMS["notes"])


def prune(resources, ctx):
    return api.Resources(api.drop_near_duplicates(resources.sft), resources.rl, resources.memory)
