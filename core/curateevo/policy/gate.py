"""The contract gate: every hard rule. A refusal names rule, line and remedy: it is the evolver's feedback."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from curateevo.api.base import digest_of
from curateevo.api.errors import PolicyRejected
from curateevo.api.spec import Sandbox
from curateevo.policy.confine import Limits
from curateevo.policy.materialise import Material, Source, materialise, rl_turns, rows_needed, sft_turns
from curateevo.policy.notes import MAX_NOTE_CHARS
from curateevo.policy.operators.items import Item, Rewrite
from curateevo.policy.quantity import quantity
from curateevo.policy.recipe import Recipe
from curateevo.policy.rewriting import Rewritten
from curateevo.policy.sandbox import Answer, SandboxRun, ask_policy, check_answer
from curateevo.policy.source import check_static, line_of_use, params_of, stage_lines
from curateevo.trajectories.columns import Columns, Texts
from curateevo.trajectories.corpus import read_features, read_rows, read_sealed_states
from curateevo.trajectories.leakage import LeakIndex
from curateevo.trajectories.model import JsonObject

MAX_TURNS_FACTOR = 4
MAX_MEMORY_ITEMS = 5000
MAX_REWRITES = 5000
RARE_SHARE = 0.02
"""A tool is rare that at most this share of the corpus's trajectories call."""
DROPPED_TOOLS = "dropped_tools"
"""The name in PARAMS under which a policy says why it lets rare tools go: reasons by tool."""
MOST_TOLD = 5
HASH_SEEDS = (1, 2)
ASKED = ("id", "family", "turns", "tools", "turn_tools")
"""The features that the rules and the rows need."""
OnStep: TypeAlias = Callable[[str], None]
"""Told what is begun, for progress."""


@dataclass(frozen=True, slots=True)
class Curated:
    """What a policy made, checked."""

    material: Material
    recipe: Recipe
    run: SandboxRun
    covered: frozenset[str]
    """See `coverage`."""


@dataclass(frozen=True, slots=True)
class GateSettings:
    limits: Limits = field(default_factory=Limits)
    timeout_seconds: float = 600.0
    seed: int = 0


def gate_settings(sandbox: Sandbox, seed: int) -> GateSettings:
    """The settings for a spec's sandbox section. Raises SpecInvalid."""
    limits = Limits(
        memory_bytes=int(quantity(sandbox.memory)),
        cpu_seconds=max(1, int(sandbox.timeout_seconds * max(1.0, quantity(sandbox.cpu)))),
    )
    return GateSettings(limits, timeout_seconds=sandbox.timeout_seconds, seed=seed)


def ignore_step(step: str) -> None:
    """For callers that show no progress."""


def curate_with_gate(
    policy: Path,
    corpus: Path,
    *,
    dev_prompts: dict[str, str],
    context: Path | None = None,
    settings: GateSettings | None = None,
    rewritten: Mapping[Rewrite, Rewritten] | None = None,
    on_step: OnStep = ignore_step,
) -> Curated:
    """Check a policy statically, run it twice in the sandbox, write its rows and check the contract. `rewritten`: as in
    `judge`; an empty one lets a policy request, and gives it no answer.

    Raises PolicyRejected for the first rule that is broken.
    """
    answers = ask_twice(policy, corpus, context=context, settings=settings or GateSettings(), on_step=on_step)
    return judge(policy, corpus, answers, dev_prompts=dev_prompts, rewritten=rewritten, on_step=on_step)


def ask_twice(
    policy: Path, corpus: Path, *, context: Path | None, settings: GateSettings, on_step: OnStep = ignore_step
) -> Iterator[Answer]:
    """The untrusted half: what the policy answers, run by run. Raises PolicyRejected at its bounds."""
    for number, hash_seed in enumerate(HASH_SEEDS, start=1):
        on_step(f"run {number} of {len(HASH_SEEDS)} in the sandbox")
        yield ask_policy(
            policy,
            corpus,
            context=context,
            seed=settings.seed,
            limits=settings.limits,
            timeout_seconds=settings.timeout_seconds,
            hash_seed=hash_seed,
        )


def judge(
    policy: Path,
    corpus: Path,
    answers: Iterable[Answer],
    *,
    dev_prompts: dict[str, str],
    rewritten: Mapping[Rewrite, Rewritten] | None = None,
    on_step: OnStep = ignore_step,
) -> Curated:
    """The trusted half: the static rules, both answers, and the rows that they make. Nothing in an answer is trusted.
    `rewritten`: the answered requests; None where no model may be asked.

    Answers are taken one by one: the second run is not asked for when the first one is refused. Raises PolicyRejected
    for the first rule that is broken, and what `answers` raises.
    """
    run = agree(policy, corpus, answers, on_step=on_step)
    return write_rows(policy, corpus, run, dev_prompts=dev_prompts, rewritten=rewritten, on_step=on_step)


def agree(policy: Path, corpus: Path, answers: Iterable[Answer], *, on_step: OnStep = ignore_step) -> SandboxRun:
    """The first part of `judge`: the static rules, and both answers, which must be the same."""
    on_step("static rules")
    check_static(read_policy(policy))
    turns = read_features(corpus, ["turns"])["turns"].to_list()
    first, second = (check_answer(answer, turns) for answer in answers)
    check_deterministic(first.recipe, second.recipe)
    return first


def write_rows(
    policy: Path,
    corpus: Path,
    run: SandboxRun,
    *,
    dev_prompts: dict[str, str],
    covered: Collection[str] = (),
    rewritten: Mapping[Rewrite, Rewritten] | None = None,
    on_step: OnStep = ignore_step,
) -> Curated:
    """The second part of `judge`: the rows and their rules. `covered`: tools that the champion's data calls;
    `rewritten`: the answered requests, None where no model may be asked."""
    on_step("contract")
    features, source = Columns(read_features(corpus, ASKED)), read_policy(policy)
    lines = stage_lines(source)
    check_size(run.recipe, features["turns"], lines)
    check_rewrites(run.recipe, rewritten, source)
    kept = coverage(run.recipe, features)
    check_rare_tools(features, kept, covered, params_of(source))
    sealed = read_sealed_states(corpus) if run.recipe.rl else {}
    texts, ids = Texts(read_rows(corpus, rows_needed(run.recipe))), features["id"]
    made_from = Source(texts, ids, features["family"], features["turns"], sealed, rewritten or {})
    material = materialise(run.recipe, made_from)
    check_contract(material, lines, dev_prompts=dev_prompts)
    return Curated(material, run.recipe, run, frozenset(kept))


def read_policy(path: Path) -> str:
    """A policy's source. Raises PolicyRejected when it is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PolicyRejected("syntax", f"not UTF-8: {error.reason}", "the file must be valid Python 3.11") from error


def check_deterministic(first: Recipe, second: Recipe) -> None:
    """Two runs, one hash."""
    if _recipe_digest(first) != _recipe_digest(second):
        raise PolicyRejected(
            "deterministic",
            "two runs with one seed gave different resources",
            "use ctx.rng for chance, and sort sets before you iterate over them",
        )


def check_size(recipe: Recipe, turns: Sequence[int], lines: Mapping[str, int]) -> None:
    """The rules on how much a recipe makes: checked before any of it is made. `turns`: of each corpus row; `lines`: of
    the stage functions."""
    if not recipe.sft:
        raise PolicyRejected(
            "sft-not-empty",
            "no SFT row is left",
            "filter less: PARAMS or the order of select and refine",
            lines["build_sft"],
        )
    wanted = sft_turns(recipe) + sum(rl_turns(task, turns) for task in recipe.rl)
    budget = MAX_TURNS_FACTOR * sum(turns)
    if wanted > budget:
        raise PolicyRejected(
            "turn-budget",
            f"{wanted} turns, allowed {budget} ({MAX_TURNS_FACTOR} times the corpus)",
            "repeat less in augment, or cap in prune",
            lines["augment"],
        )
    if len(recipe.memory) > MAX_MEMORY_ITEMS:
        raise PolicyRejected(
            "memory-count",
            f"{len(recipe.memory)} items, allowed {MAX_MEMORY_ITEMS}",
            "lower the limit in build_memory",
            lines["build_memory"],
        )


def check_rewrites(recipe: Recipe, rewritten: Mapping[Rewrite, Rewritten] | None, source: str) -> None:
    """The rules on requests for rewriting."""
    line = line_of_use(source, "request_rewrite")
    if recipe.requests and rewritten is None:
        raise PolicyRejected(
            "rewrite-model",
            f"{len(recipe.requests)} rewrites are requested, and the spec names no model for them",
            "name one in spec.augmentation.llm, or do without request_rewrite",
            line,
        )
    if len(recipe.requests) > MAX_REWRITES:
        raise PolicyRejected(
            "rewrite-count",
            f"{len(recipe.requests)} rewrites are requested, allowed {MAX_REWRITES}",
            "request for fewer items or turns: those that matter most, by score or failures",
            line,
        )
    if loose := next((r for i in recipe.sft for r in i.rewrites if r not in (rewritten or {})), None):
        raise PolicyRejected(
            "rewrite-answered",
            f"an item of row {loose.row} has turn {loose.turn} rewritten, and there is no answer for it",
            "leave Item.rewrites to request_rewrite",
            line,
        )


def coverage(recipe: Recipe, features: Mapping[str, list[Any]]) -> set[str]:
    """The tools that SFT rows call in kept turns, or that the trajectories of RL tasks call."""
    of_turns, of_rows = features["turn_tools"], features["tools"]
    called = {name for item in recipe.sft for name in called_by(item, of_turns)}
    return called | {name for task in recipe.rl for name in of_rows[task.row]}


def called_by(item: Item, turn_tools: Sequence[Sequence[str]] | Mapping[int, Sequence[str]]) -> frozenset[str]:
    """The tools that an item's kept turns call. `turn_tools`: the feature, by row."""
    return frozenset(name for turn in item.turns for name in turn_tools[item.row][turn].split(">") if name)


def check_rare_tools(
    features: Mapping[str, list[Any]], kept: Collection[str], covered: Collection[str], params: Mapping[str, Any]
) -> None:
    """No rare tool that the champion's data calls may go without a reason: what few rows show is soon lost."""
    calling = Counter(name for names in features["tools"] for name in names)
    reasons = params.get(DROPPED_TOOLS)
    stated = {name for name, why in reasons.items() if str(why).strip()} if isinstance(reasons, dict) else set()
    rare = {name for name, rows in calling.items() if rows <= RARE_SHARE * len(features["tools"])}
    if lost := sorted(rare & set(covered) - set(kept) - stated):
        shown = ", ".join(lost[:MOST_TOLD]) + (", ..." if len(lost) > MOST_TOLD else "")
        raise PolicyRejected(
            "rare-tools",
            f"the champion's data calls {shown}, which few trajectories do, and this policy's does not",
            f"keep an SFT row or an RL task that calls it, or say why not: "
            f"PARAMS[{DROPPED_TOOLS!r}] = {{{lost[0]!r}: 'the reason'}}",
        )


def check_contract(material: Material, lines: Mapping[str, int], *, dev_prompts: dict[str, str]) -> None:
    """The rules on the rows themselves, row by row."""
    index = LeakIndex(dev_prompts)
    for row in material.sft:
        _check_user(row, lines["refine"])
        _check_leak(row, index, lines["build_sft"])
    for row in material.rl:
        _check_resolvable(row, lines["build_rl"])
        _check_leak(row, index, lines["build_rl"])
    for row in material.memory:
        _check_note(row, index, lines["build_memory"])


def _check_user(row: JsonObject, line: int) -> None:
    if not any(message["role"] == "user" for message in row["messages"]):
        raise PolicyRejected(
            "row-has-user",
            f"{row['id']} has no message of a user",
            "keep a turn that a user's message stands before: its trajectory has no opening",
            line,
        )


def _check_resolvable(row: JsonObject, line: int) -> None:
    if row["reward"] == "environment" and (row["suite"] is None or row["state"] is None):
        raise PolicyRejected(
            "rl-resolvable",
            f"RL task {row['id']} ({row['task_id']}) has no environment",
            "use rl_next_action for trajectories without one",
            line,
        )
    if row["reward"] == "action_match" and not row["reference"]:
        raise PolicyRejected(
            "rl-resolvable",
            f"RL task {row['id']} points at a turn without a call",
            "point at turns that call a tool",
            line,
        )


def _check_leak(row: JsonObject, index: LeakIndex, line: int) -> None:
    users = [str(m["content"]) for m in row["messages"] if m["role"] == "user"]
    if found := index.find(row.get("task_id"), users):
        raise PolicyRejected("no-dev-content", f"{row['id']}: {found}", "leave that trajectory out", line)


def _check_note(row: JsonObject, index: LeakIndex, line: int) -> None:
    size, source = len(row["content"]), row["evidence"][0][0]
    if not 0 < size <= MAX_NOTE_CHARS:
        raise PolicyRejected(
            "memory-size",
            f"a note of {size} characters (from {source}), allowed 1 to {MAX_NOTE_CHARS}",
            "take a shorter span of the result, or point at what the note's kind needs",
            line,
        )
    if found := index.find(None, [row["title"], row["content"]]):
        raise PolicyRejected("no-dev-content", f"a note from {source}: {found}", "leave it out", line)


def _recipe_digest(recipe: Recipe) -> str:
    sft = [[i.row, i.turns, i.copies, i.masked, i.max_result_chars, *map(_key, i.rewrites)] for i in recipe.sft]
    rl = [[t.row, t.turn, t.reward, t.aimed] for t in recipe.rl]
    memory = [[m.row, m.turn, m.result, m.start, m.end, m.kind, m.against] for m in recipe.memory]
    return digest_of([sft, rl, memory, *map(_key, recipe.requests)])


def _key(request: Rewrite) -> list[object]:
    return [request.row, request.turn, request.kind.value, request.instruction]
