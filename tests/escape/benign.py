"""Honest policies: every operator, every module that may be imported, and the ways in which people write."""

from __future__ import annotations

import textwrap

from curateevo.policy.builtin import NAMES, source_of

BASE = source_of("keep-all")
HEAD = "from curateevo.policy import api\n"
SELECT, REFINE, AUGMENT, SFT, RL, MEMORY, PRUNE = (
    ("def select(corpus, ctx):\n", "    return corpus.items()\n"),
    ("def refine(items, ctx):\n", "    return items\n"),
    ("def augment(items, ctx):\n", "    return items\n"),
    ("def build_sft(items, ctx):\n", "    return items\n"),
    ("def build_rl(items, ctx):\n", '    return api.rl_tasks(items, ctx, count=PARAMS["rl_tasks"])\n'),
    ("def build_memory(items, ctx):\n", "    return ()\n"),
    ("def prune(resources, ctx):\n", "    return resources\n"),
)
SCORED = "grace"
"""Wants scores that the corpus of these tests does not have."""
POLICIES: dict[str, str] = {f"built-in {name}": source_of(name) for name in NAMES if name != SCORED}


def policy(name: str, *changes: tuple[tuple[str, str], str], head: str = "") -> None:
    source = BASE.replace(HEAD, textwrap.dedent(head) + HEAD) if head else BASE
    for (signature, default), body in changes:
        assert signature + default in source
        source = source.replace(
            signature + default, signature + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n"
        )
    POLICIES[name] = source


policy("successes only", (SELECT, "return api.keep_successes(corpus.items())"))
policy("valid and grounded", (SELECT, """
    items = api.keep_valid(corpus.items())
    facts = api.memory_facts(corpus, limit=1000)
    return api.keep_grounded(items, max_ungrounded=9, facts=facts)
"""))  # fmt: skip
policy("reliable and short", (SELECT, """
    items = api.keep_reliable(corpus.items(), min_success=0.1)
    return api.keep_short(items, max_turns=12)
"""))  # fmt: skip
policy(
    "recovered or all",
    (SELECT, "found = api.keep_recovered(corpus.items())\nreturn found if len(found) else corpus.items()"),
)
policy(
    "a sample of turns",
    (
        SELECT,
        "return api.sample_turns(corpus.items(), turns=10, seed_order=[ctx.rng.random() for _ in corpus.items()])",
    ),
)
policy("refines everything", (REFINE, """
    for step in (api.drop_malformed_turns, api.fold_repeats, api.drop_unused_calls):
        items = step(items)
    return items
"""))  # fmt: skip
policy("keeps the tail", (REFINE, "return api.keep_tail(api.drop_error_turns(items), max_turns=3)"))
policy("balances", (AUGMENT, "return api.balance(items, ctx, per_group=4)"))
policy("matches failures", (AUGMENT, "return api.match_failures(items, ctx, per_group=3, boost=1.5)"))
policy("caps and deduplicates", (PRUNE, """
    sft = api.drop_exact_duplicates(resources.sft)
    sft = api.drop_near_duplicates(sft, threshold=0.95)
    return api.Resources(api.cap(sft, ctx, per_group=5), resources.rl, resources.memory)
"""))  # fmt: skip
policy("next actions", (RL, "return api.rl_next_action(items, ctx, count=5)"))
policy("environments", (RL, "return api.rl_environment(items, ctx, count=5, aim=('f',))"))
policy("facts for memory", (MEMORY, "return api.memory_facts(items.corpus, limit=20, trust_failures=False)"))
policy("scores and decisions", (SELECT, """
    items = api.keep_between(corpus.items(), api.score_noise(corpus.items()), high=1.0)
    items = api.best_of(items, api.score_outcome(items), count=3)
    ctx.metric("tokens", sum(api.score_tokens(items)) + sum(api.score_rarity(items)) + sum(api.score_feature(items, "calls")))
    ctx.metric("hard", sum(api.score_difficulty(items, ctx)) + sum(api.score_learnability(items, ctx)))
    return api.keep_top(items, api.score_turns(items), count=9)
"""))  # fmt: skip
policy("tools, errors, benchmarks", (SELECT, """
    items = api.drop_tools(api.keep_tools(corpus.items(), ["f", "g"]), ["h"])
    ctx.log(str(len(api.keep_errors(items, "error"))))
    return api.decontaminate(api.drop_errors(items, "no such (user|order)"), {"other": "a task of another benchmark"})
"""))  # fmt: skip
policy("masks and segments", (REFINE, """
    items = api.segment(api.mask_failed_turns(api.drop_no_ops(items)), max_turns=2, context=1)
    items = items.mask_turns(lambda item, turn, flags: bool(flags & api.TurnFlag.REPEAT), "insisting")
    return api.shorten_results(api.pick_steps(items, share=0.9), max_chars=80)
"""))  # fmt: skip
policy("heads and tails", (REFINE, "return api.drop_middle(api.keep_head(items, max_turns=5), head=1, tail=1)"))
policy("repeats what is rare", (AUGMENT, """
    items = api.balance_tools(api.upsample_failures(items, ctx, boost=2.0), per_tool=4)
    return api.balance_scores(items, ctx, api.score_failures(items, ctx), per_group=6, bins=2)
"""))  # fmt: skip
policy("the same calls once", (PRUNE, """
    return api.Resources(api.drop_same_calls(resources.sft), resources.rl, resources.memory)
"""))  # fmt: skip
policy("contrasts", (RL, "return api.rl_contrasts(items, ctx, count=5)"))
policy("notes of every kind", (MEMORY, """
    notes = api.memory_tools(items, limit=9) + api.memory_constraints(items, limit=9)
    return notes + api.memory_recoveries(items, limit=9) + api.memory_rules(items, limit=9)
"""))  # fmt: skip
policy("rare signatures first", (SELECT, """
    items = corpus.items()
    count = Counter(items.feature("signature"))
    order = sorted(items, key=lambda i: (count[corpus.column("signature")[i.row]], i.row))
    return api.Items(corpus, tuple(order))
"""), head="from collections import Counter, OrderedDict, defaultdict, deque\n")  # fmt: skip
policy("regular expressions over text", (SELECT, """
    pattern = re.compile(r"ok\\s+value(\\d+)", re.IGNORECASE)
    texts = corpus.trajectories(range(len(corpus)))
    hits = {row for row, t in texts.items() if any(pattern.search(r) for turn in t.turns for r in turn.results)}
    return corpus.items().keep(lambda item: item.row in hits, "has-value")
"""), head="import re\n")  # fmt: skip
policy("JSON of arguments", (SELECT, """
    texts = corpus.trajectories(range(len(corpus)))
    sizes = {row: len(json.dumps([json.loads(json.dumps(c.parsed())) for turn in t.turns for c in turn.calls], sort_keys=True))
             for row, t in texts.items()}
    return corpus.items().keep(lambda item: sizes[item.row] < 1000, "short-arguments")
"""), head="import json\n")  # fmt: skip
policy("statistics of lengths", (SELECT, """
    tokens = corpus.column("tokens")
    middle, spread = statistics.median(tokens), statistics.pstdev(tokens)
    ctx.metric("median tokens", middle)
    ctx.metric("log of spread", math.log1p(spread))
    top = statistics.quantiles(tokens, n=10)[-1]
    return corpus.items().keep(lambda item: tokens[item.row] <= max(top, middle + 3 * spread), "not-long")
"""), head="import math\nimport statistics\n")  # fmt: skip
policy("pairs and chains", (SELECT, """
    items = list(corpus.items())
    near = [(a, b) for a, b in itertools.combinations(items[:6], 2) if api.similarity(corpus.column("minhash")[a.row], corpus.column("minhash")[b.row]) > 0.99]
    ctx.log(f"{len(near)} pairs, {sum(1 for _ in itertools.chain(items, items))} in chain")
    return api.Items(corpus, tuple(itertools.islice(items, 0, None)))
"""), head="import itertools\n")  # fmt: skip
policy("scores in a class", (SELECT, """
    scored = [Scored(item, weigh(corpus, item)) for item in corpus.items()]
    best = functools.reduce(lambda a, b: a if a.score >= b.score else b, scored)
    ctx.log(f"best: {best.item.row}")
    return api.Items(corpus, tuple(s.item for s in sorted(scored, key=lambda s: (-s.score, s.item.row))))
"""), head='''
import dataclasses
import functools
import typing


@dataclasses.dataclass(frozen=True)
class Scored:
    item: typing.Any
    score: float = 0.0


@functools.lru_cache(maxsize=None)
def weight(flags):
    return 1.0 if flags & 1 else 0.5


def weigh(corpus, item):
    return sum(weight(f) for f in corpus.column("turn_flags")[item.row]) / max(1, len(item.turns))
''')  # fmt: skip
policy("recursion", (SELECT, "return api.Items(corpus, tuple(halves(list(corpus.items()))))"), head='''
def halves(items):
    if len(items) < 2:
        return items
    middle = len(items) // 2
    left, right = halves(items[:middle]), halves(items[middle:])
    out = []
    while left and right:
        out.append(left.pop(0) if left[0].row <= right[0].row else right.pop(0))
    return out + left + right
''')  # fmt: skip
policy("text templates", (SELECT, """
    line = string.Template("$kept of $all").substitute(kept=len(corpus.items()), all=len(corpus))
    ctx.log(line.title().translate(str.maketrans("", "", string.punctuation)))
    ctx.log("{:>8.2f} {!r:^10} {name}".format(1.5, "x", name="y"))
    return corpus.items()
"""), head="import string\n")  # fmt: skip
policy("chance from the seed", (SELECT, """
    items = list(corpus.items())
    ctx.rng.shuffle(items)
    kept = ctx.rng.sample(items, k=max(1, len(items) * 3 // 4))
    return api.Items(corpus, tuple(kept))
"""))  # fmt: skip
policy("cuts turns by flags", (REFINE, """
    kept = items.keep_turns(lambda item, turn, flags: not flags & api.TurnFlag.ERROR, "no-errors")
    for item in kept:
        assert items.flags(item) is not None
    return kept if len(kept) else items
"""))  # fmt: skip
policy("errors that it handles", (SELECT, """
    try:
        corpus.column("no such feature")
    except KeyError as error:
        ctx.log(f"no {error}")
    finally:
        ctx.log("went on")
    try:
        raise ValueError("a")
    except ValueError:
        pass
    return corpus.items()
"""))  # fmt: skip
policy("generators, matches, sets in order", (SELECT, """
    def families():
        yield from sorted(set(corpus.column("family")))

    match list(families()):
        case [first, *rest]:
            ctx.log(f"{first} and {len(rest)} more")
        case _:
            ctx.log("none")
    with_success = {True: 0, False: 0, None: 0}
    for value in corpus.column("success"):
        with_success[value] += 1
    ctx.log(str(with_success))
    return corpus.items()
"""))  # fmt: skip
policy("work on many rows", (SELECT, """
    total = sum(i * i % 7 for i in range(300_000))
    table = {n: [n] * 10 for n in range(20_000)}
    ctx.log(f"{total} {len(table)}")
    return corpus.items()
"""))  # fmt: skip
policy("prints a little", (SELECT, 'print("rows:", len(corpus))\nreturn corpus.items()'))
policy("looks into the context", (SELECT, """
    ctx.log(f"{sorted(ctx.profile)} {len(ctx.failures)} {sorted(ctx.family_success)} {len(ctx.tools)} {ctx.params['rl_tasks']}")
    return corpus.items()
"""))  # fmt: skip
policy("all at once", (SELECT, "return api.keep_successes(corpus.items())"),
    (REFINE, "return api.fold_repeats(api.drop_malformed_turns(items))"), (AUGMENT, "return api.balance(items, ctx, per_group=5)"),
    (MEMORY, "return api.memory_facts(items.corpus, limit=300)"),
    (PRUNE, "return api.Resources(api.drop_exact_duplicates(resources.sft), resources.rl, resources.memory)"))  # fmt: skip
