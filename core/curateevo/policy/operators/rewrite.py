"""Text made anew by a model, in two passes: the first requests, the trusted side asks, the second uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from curateevo.policy.operators.items import Context, Item, Items, Rewrite, RewriteKind

MAX_INSTRUCTION_CHARS = 500


def request_rewrite(
    items: Items,
    ctx: Context,
    *,
    kind: str,
    instruction: str,
    turns: Callable[[Item, int, int], bool] | None = None,
    keep: bool = False,
) -> Items:
    """Items with the texts of `kind` (answer, reasoning, prompt) rewritten by a model as `instruction` says, at all
    turns or those for which `turns(item, turn, flags)`. Calls and results stay; so do texts that get no answer.

    The policy runs twice: what is requested in the first run is answered in the second. `keep`: the originals stay in
    front of the rewritten items. Needs `spec.augmentation`: without it the gate refuses a policy that requests.
    Raises ValueError for another kind, and for an instruction that is empty or longer than 500 characters.
    """
    wanted, asked = RewriteKind(kind), " ".join(str(instruction).split())
    if not 0 < len(asked) <= MAX_INSTRUCTION_CHARS:
        raise ValueError(f"request_rewrite: an instruction of {len(asked)} characters, not 1..{MAX_INSTRUCTION_CHARS}")
    bits = items.corpus.column("turn_flags")
    out: list[Item] = []
    for item in items:
        chosen = [t for t in item.turns if turns is None or turns(item, t, bits[item.row][t])]
        requests = [Rewrite(item.row, turn, wanted, asked) for turn in chosen]
        ctx.requests.update(dict.fromkeys(requests))
        answered = tuple(request for request in requests if request in ctx.rewritten)
        if keep or not answered:
            out.append(item)
        if answered:
            replaced = {(rewrite.turn, rewrite.kind) for rewrite in answered}
            others = tuple(r for r in item.rewrites if (r.turn, r.kind) not in replaced)
            lineage = (*item.lineage, "request_rewrite")
            out.append(replace(item, rewrites=(*others, *answered), lineage=lineage))
    return replace(items, items=tuple(out))
