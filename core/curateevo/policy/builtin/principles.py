"""Everything for SFT, and a memory of principles: what succeeds, what fails, how errors are mended, what tools refuse.

In the manner of MetaEvo (arXiv 2606.07603), which abstracts principles from experience and reuses them. Simplified: the
principles are written from the corpus by templates; no model learns to abstract them.
"""

from curateevo.policy import api

POLICY_API = 1
PARAMS = {"rl_tasks": 200, "rules": 100, "recoveries": 50, "constraints": 50}


def select(corpus, ctx):
    return corpus.items()


def refine(items, ctx):
    return items


def augment(items, ctx):
    return items


def build_sft(items, ctx):
    return items


def build_rl(items, ctx):
    return api.rl_tasks(items, ctx, count=PARAMS["rl_tasks"])


def build_memory(items, ctx):
    rules = api.memory_rules(items, limit=PARAMS["rules"])
    recoveries = api.memory_recoveries(items, limit=PARAMS["recoveries"])
    return rules + recoveries + api.memory_constraints(items, limit=PARAMS["constraints"])


def prune(resources, ctx):
    return resources
