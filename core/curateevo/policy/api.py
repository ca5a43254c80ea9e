"""Policy API 1: all that a policy may import besides a few modules of the standard library (see docs/policies.md)."""

from curateevo.policy.operators.augment import balance, cap, match_failures
from curateevo.policy.operators.build import memory_facts, rl_environment, rl_next_action, rl_tasks
from curateevo.policy.operators.deduplicate import drop_exact_duplicates, drop_near_duplicates, similarity
from curateevo.policy.operators.items import (
    Context,
    Corpus,
    Item,
    Items,
    MemoryItem,
    Resources,
    RlTask,
    TurnFlag,
)
from curateevo.policy.operators.refine import (
    drop_error_turns,
    drop_malformed_turns,
    drop_unused_calls,
    fold_repeats,
    keep_tail,
)
from curateevo.policy.operators.select import (
    keep_grounded,
    keep_recovered,
    keep_reliable,
    keep_short,
    keep_successes,
    keep_valid,
    sample_turns,
    signature_of,
)

__all__ = [
    "Context",
    "Corpus",
    "Item",
    "Items",
    "MemoryItem",
    "Resources",
    "RlTask",
    "TurnFlag",
    "balance",
    "cap",
    "drop_error_turns",
    "drop_exact_duplicates",
    "drop_malformed_turns",
    "drop_near_duplicates",
    "drop_unused_calls",
    "fold_repeats",
    "keep_grounded",
    "keep_recovered",
    "keep_reliable",
    "keep_short",
    "keep_successes",
    "keep_tail",
    "keep_valid",
    "match_failures",
    "memory_facts",
    "rl_environment",
    "rl_next_action",
    "rl_tasks",
    "sample_turns",
    "signature_of",
    "similarity",
]
