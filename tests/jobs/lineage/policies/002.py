"""The evolvable policy. As it stands it keeps everything; each stage has moves that PARAMS switches on."""

from curateevo.policy import api

POLICY_API = 1
PARAMS = {
    "select_success": False,
    "select_reliable": 0.0,
    "select_recovered": False,
    "select_valid": False,
    "select_max_ungrounded": -1,
    "refine_malformed": False,
    "refine_repeats": False,
    "refine_unused": False,
    "augment_per_family": 0,
    "augment_boost": 1.0,
    "rl_tasks": 200,
    "rl_aim_below": 0.0,
    "memory_facts": 0,
    "prune_exact": False,
    "prune_near": 0.0,
    "prune_per_family": 0,
    "prune_error_turns": False,
}


def select(corpus, ctx):
    """Which trajectories are worth learning from."""
    items = corpus.items()
    if PARAMS["select_valid"]:
        items = api.keep_valid(items)
    return items


def refine(items, ctx):
    """Repair them: drop turns that teach nothing, then judge what is left."""
    if PARAMS["refine_malformed"]:
        items = api.drop_malformed_turns(items)
    if PARAMS["refine_repeats"]:
        items = api.fold_repeats(items)
    if PARAMS["refine_unused"]:
        items = api.drop_unused_calls(items)
    if PARAMS["select_recovered"]:
        items = api.keep_recovered(items)
    if PARAMS["select_reliable"] > 0:
        items = api.keep_reliable(items, min_success=PARAMS["select_reliable"])
    items = api.keep_successes(items)
    if PARAMS["select_max_ungrounded"] >= 0:
        facts = api.memory_facts(items.corpus, limit=1000)
        items = api.keep_grounded(items, max_ungrounded=PARAMS["select_max_ungrounded"], facts=facts)
    return items


def augment(items, ctx):
    """How often each one stands in the data."""
    if PARAMS["augment_per_family"] > 0:
        return api.match_failures(items, ctx, per_group=PARAMS["augment_per_family"], boost=PARAMS["augment_boost"])
    return items


def build_sft(items, ctx):
    return items


def build_rl(items, ctx):
    """Tasks to practise; families below `rl_aim_below` on diag are aimed at, the others are replayed."""
    aim = sorted(name for name, p in ctx.family_success.items() if p < PARAMS["rl_aim_below"])
    return api.rl_tasks(items, ctx, count=PARAMS["rl_tasks"], aim=aim)


def build_memory(items, ctx):
    """Facts that no request holds."""
    if PARAMS["memory_facts"] > 0:
        return api.memory_facts(items.corpus, limit=PARAMS["memory_facts"])
    return ()


def prune(resources, ctx):
    """Efficiency: the same lesson with fewer turns."""
    sft = api.drop_exact_duplicates(resources.sft)
    if PARAMS["prune_near"] > 0:
        sft = api.drop_near_duplicates(sft, threshold=PARAMS["prune_near"])
    if PARAMS["prune_error_turns"]:
        sft = api.drop_error_turns(sft)
    if PARAMS["prune_per_family"] > 0:
        sft = api.cap(sft, ctx, per_group=PARAMS["prune_per_family"])
    return api.Resources(sft, resources.rl, resources.memory)
