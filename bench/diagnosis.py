"""`python -m bench.diagnosis`: how often the diagnosis is right, by family of failures, where the truth is known.

Failures come from three places, none of which lets the diagnosis read the truth:
- corpus: toolworld's corpus, rows whose label says failed; each row's planted defect is in the truth file;
- dev: dev tasks played by a scripted agent that makes one known mistake, half of each family's tasks played well;
- dev, all fail: the same without a success in any family, so that there is nothing to compare with;
- dev, one repeat well: the same, and each task was played well once.

Precision of a family: claims of it that are true. Recall: planted failures of it that are claimed as it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from agentpile.deps import value_flow_v1

from curateevo.evolver.diagnosis import FailureFamily, Mode, diagnose
from curateevo.evolver.diagnosis.episode import Origin, read_episode
from curateevo.evolver.diagnosis.modes import READINGS
from curateevo.evolver.diagnosis.said import changes_state
from curateevo.trajectories.formats.atif_steps import read_record
from curateevo_jobs.agents.chat import Answer, Generation
from curateevo_jobs.agents.chat import Call as Made
from curateevo_jobs.agents.episode import Episode, Rules, play
from curateevo_jobs.agents.memory import with_notes
from curateevo_jobs.agents.scripted import Scripted, in_turn
from curateevo_jobs.benchmarks.base import JsonObject
from curateevo_jobs.benchmarks.toolworld.corpus import Defect, Truth, generate, spoil
from curateevo_jobs.benchmarks.toolworld.phrasing import Skill
from curateevo_jobs.benchmarks.toolworld.suite import dev_scenarios
from curateevo_jobs.benchmarks.toolworld.values import CODES, ITEMS
from curateevo_jobs.benchmarks.toolworld.world import Call, Scenario, World, fact, reference_calls, tool_schemas

MAX_TURNS = 8
Checks = dict[str, bool]
Moves = Sequence[Call | str]

PLANTED: dict[Defect, Mode] = {
    Defect.CLEAN: Mode.NOISY_LABEL,
    Defect.STOPPED_EARLY: Mode.STOPPED_EARLY,
    Defect.WRONG_TOOL: Mode.WRONG_TOOL,
    Defect.WRONG_ARGUMENT: Mode.INVENTED_ARGUMENT,
    Defect.MALFORMED: Mode.MALFORMED_CALL,
    Defect.DETOUR: Mode.NEEDLESS_CALL,
    Defect.NEEDLESS_CALL: Mode.NEEDLESS_CALL,
    Defect.SLOW_RECOVERY: Mode.REPEATED_FAILURE,
    Defect.GAVE_UP: Mode.REPEATED_FAILURE,
    Defect.REFUNDED: Mode.WRONG_TOOL,
}
"""The mode that should find a defect of toolworld's corpus."""


@dataclass(frozen=True, slots=True)
class Case:
    """A failed episode and the one mistake in it; `truth` is None for an episode that succeeded."""

    row: JsonObject
    checks: Checks
    truth: Mode | None


def corpus_cases(seed: int) -> list[Case]:
    """All rows of a corpus; those labelled as failures have their planted defect as truth."""
    rows, truths = generate(seed)
    return [_corpus_case(row, truths[row["id"]]) for row in rows]


def _corpus_case(row: JsonObject, truth: Truth) -> Case:
    success = row["outcome"]["success"]
    mode = PLANTED[truth.defect]
    if truth.defect is Defect.STOPPED_EARLY and len(reference_calls_of(row)) == 1:
        mode = Mode.NO_CALL
    shown = _row(row["id"], row["task"]["tags"][0], success, row["messages"])
    return Case(shown, {}, None if success else mode)


def reference_calls_of(row: JsonObject) -> tuple[Call, ...]:
    """The calls that solve a corpus row's task."""
    state = json.loads(row["task"]["state"])
    return reference_calls(
        Scenario(
            Skill(state["skill"]),
            row["task"]["prompt"],
            state["slots"],
            state["order"],
            state["have"],
            state["trouble"],
        )
    )


def _row(task: str, family: str, success: float, messages: list[JsonObject]) -> JsonObject:
    return {
        "task": task,
        "family": family,
        "subject": "seed-0",
        "repeat": 0,
        "success": float(success),
        "messages": messages,
        "tools": list(tool_schemas()),
    }


@dataclass(frozen=True, slots=True)
class Mistake:
    """What the scripted agent does: its moves, its last words, the notes that it is shown."""

    mode: Mode
    moves: Moves
    answer: str = "Done."
    notes: tuple[str, ...] = ()
    mislabelled: bool = False


def mistakes(scenario: Scenario, rng: random.Random) -> list[Mistake]:
    """Every mistake that can be made on this task."""
    found: list[Mistake] = []
    for defect in Defect:
        if defect is Defect.CLEAN or (moves := _spoilt(scenario, defect, rng)) is None:
            continue
        mode = PLANTED[defect]
        if defect is Defect.STOPPED_EARLY:
            if len(moves) == 1 and scenario.trouble and scenario.skill in (Skill.MESSAGE, Skill.BUY):
                mode = Mode.RECOVERY_FAILURE
            elif not moves:
                mode = Mode.NO_CALL
        found.append(Mistake(mode, moves))
    return [*found, *_further(scenario, rng)]


def _spoilt(scenario: Scenario, defect: Defect, rng: random.Random) -> Moves | None:
    """The moves of a defect of the corpus, where that skill's recipe knows of it or could."""
    fits: dict[Defect, Iterable[Skill]] = {
        Defect.STOPPED_EARLY: set(Skill) - {Skill.CHAT},
        Defect.WRONG_TOOL: (Skill.WEATHER, Skill.TIMER, Skill.MONEY, Skill.STOCK),
        Defect.WRONG_ARGUMENT: set(Skill) - {Skill.CHAT},
        Defect.MALFORMED: set(Skill) - {Skill.CHAT},
        Defect.DETOUR: (Skill.REFUND, Skill.CANCEL, Skill.SHIP),
        Defect.NEEDLESS_CALL: (Skill.CHAT,),
        Defect.SLOW_RECOVERY: (Skill.MESSAGE, Skill.BUY),
        Defect.GAVE_UP: (Skill.MESSAGE, Skill.BUY),
        Defect.REFUNDED: (Skill.CANCEL,),
    }
    return spoil(scenario, defect, rng) if scenario.skill in fits[defect] else None


def _further(scenario: Scenario, rng: random.Random) -> Iterable[Mistake]:
    """Mistakes that the corpus does not hold."""
    wanted = reference_calls(scenario)
    yield Mistake(Mode.NOISY_LABEL, wanted, mislabelled=True)
    if not wanted:
        return
    first, last = wanted[0], wanted[-1]
    *others, name = last.arguments
    yield Mistake(Mode.SCHEMA_VIOLATION, [*wanted[:-1], Call(last.name, {k: last.arguments[k] for k in others})])
    yield Mistake(Mode.SCHEMA_VIOLATION, [*wanted[:-1], Call("do_" + last.name, last.arguments)])
    yield Mistake(Mode.LOOP, [Call("get_weather", {"city": "Rome"})] * MAX_TURNS)
    rambling = [Call("check_stock", {"item": item}) for item in rng.sample(ITEMS, MAX_TURNS)]
    yield Mistake(Mode.OVER_LONG, rambling)
    if scenario.skill in (Skill.REFUND, Skill.CANCEL):
        other = rng.choice([n for n in range(10, 100) if n != scenario.order])
        yield Mistake(Mode.BINDING_DRIFT, [first, Call(last.name, {"order": other})])
        verb = {"refund_order": "refunded", "cancel_order": "cancelled"}[last.name]
        yield Mistake(Mode.EXECUTION_GAP, [first], f"I have {verb} order {scenario.order}.")
        yield Mistake(
            Mode.EXECUTION_GAP, [first], f"Order {scenario.order} was found. I will {last.name[:6]} the order."
        )
    if scenario.skill is Skill.MESSAGE and scenario.trouble:
        other = rng.choice([i for i in ITEMS if i != last.arguments["topic"]])
        yield Mistake(Mode.BINDING_DRIFT, [first, Call(last.name, {**last.arguments, "topic": other})])
    if scenario.skill is Skill.MESSAGE:
        exchanged = dict(zip(first.arguments, reversed(first.arguments.values()), strict=True))
        yield Mistake(Mode.WRONG_ARGUMENT, [Call(first.name, exchanged), *wanted[1:]])
    if scenario.skill in (Skill.SHIP, Skill.ACCOUNT):
        key = str(next(iter(last.arguments.values())))
        wrong = rng.choice([c for c in CODES if c != last.arguments[name]])
        call = Call(last.name, {**last.arguments, name: wrong})
        yield Mistake(Mode.MEMORY_MISLED, [call], notes=(f"ok {key} {name} {wrong}",))
        yield Mistake(Mode.MEMORY_IGNORED, [call], notes=(f"ok {key} {name} {fact(name, key)}",))


class Beside(StrEnum):
    """What stands beside the failures."""

    PEERS = "other tasks of the family, played well"
    REPEATS = "a run of the same task, played well"
    NOTHING = "no success"


DEV_PLACES = {"dev": Beside.PEERS, "dev, one repeat well": Beside.REPEATS, "dev, all fail": Beside.NOTHING}


def dev_cases(seed: int, per_skill: int, beside: Beside) -> list[Case]:
    """Dev tasks played with one mistake each, every mistake of a skill in turn."""
    rng = random.Random(f"bench diagnosis {seed}")
    cases: list[Case] = []
    for skill in Skill:
        scenarios = dev_scenarios(skill, 2 * per_skill, seed)
        for number, scenario in enumerate(scenarios[:per_skill]):
            choices = mistakes(scenario, rng)
            cases.append(_played(scenario, choices[number % len(choices)]))
        match beside:
            case Beside.PEERS:
                cases += [_played(scenario, None) for scenario in scenarios[per_skill:]]
            case Beside.REPEATS:
                cases += [_played(scenario, None, repeat=1) for scenario in scenarios[:per_skill]]
            case Beside.NOTHING:
                pass
    return cases


def _played(scenario: Scenario, mistake: Mistake | None, repeat: int = 0) -> Case:
    """The episode of an agent that makes this mistake, or none; scored by the world."""
    made = mistake or Mistake(Mode.UNKNOWN, reference_calls(scenario))
    answers = [_answer(move) for move in made.moves] + [Answer(content=made.answer)]
    request: JsonObject = {"role": "user", "content": scenario.prompt}
    episode = Episode(0, with_notes([request], made.notes, "system"), tool_schemas(), World(scenario))
    play(Scripted(in_turn(*answers)), [episode], Rules(Generation(0.0, 256), MAX_TURNS))
    score = episode.score()
    wrong = mistake is not None and (mistake.mislabelled or score.success < 1)
    row = _row(scenario.task_id, scenario.skill.value, not wrong, episode.messages) | {"repeat": repeat}
    return Case(row, score.checks, made.mode if wrong else None)


def _answer(move: Call | str) -> Answer:
    if isinstance(move, str):
        return Answer(content=move, malformed=True)
    return Answer(calls=(Made(move.name, dict(move.arguments), json.dumps(move.arguments)),))


@dataclass(slots=True)
class Tally:
    """Counts of truths, claims, and claims that are true, by family and by mode."""

    planted: Counter[str] = field(default_factory=Counter)
    claimed: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    confused: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def add(self, cases: Sequence[Case]) -> None:
        truths = {case.row["task"]: case.truth for case in cases if case.truth is not None}
        checks = {(case.row["task"], case.row["repeat"]): case.checks for case in cases}
        found = diagnose([case.row for case in cases], checks)
        for finding in found.findings:
            truth = truths[finding.evidence.task]
            for planted, claimed in (
                (truth.value, finding.mode.value),
                (READINGS[truth].family.value, READINGS[finding.mode].family.value),
            ):
                self.planted[planted] += 1
                self.claimed[claimed] += 1
                self.right[planted] += planted == claimed
            if truth is not finding.mode:
                self.confused[finding.family, truth.value, finding.mode.value] += 1


def table(tallies: dict[str, Tally], names: type[StrEnum]) -> str:
    """Markdown: a line for each name, of a family or a mode, and each place."""
    lines = [
        f"| {'mode' if names is Mode else 'family'} | where | planted | claimed | right | precision | recall |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in names:
        for place, tally in tallies.items():
            planted, claimed, right = (c[name.value] for c in (tally.planted, tally.claimed, tally.right))
            if planted or claimed:
                lines.append(
                    f"| {name.value} | {place} | {planted} | {claimed} | {right} "
                    f"| {_share(right, claimed)} | {_share(right, planted)} |"
                )
    return "\n".join(lines)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.2f}" if whole else "–"


def grounding_seen(cases: Iterable[Case]) -> tuple[int, int, int]:
    """Arguments of the cases, those that we find an origin for, and the calls that agentpile's value flow explains."""
    total = ours = theirs = 0
    for case in cases:
        made = read_episode(case.row, case.checks).made
        total += sum(len(m.arguments) for m in made)
        ours += sum(a.origin is not Origin.NOWHERE for m in made for a in m.arguments)
        theirs += len(value_flow_v1(read_record({"messages": case.row["messages"]}, "openai-messages")))
    return total, ours, theirs


def airline(path: Path) -> str:
    """τ-bench's airline runs: claims on tools beside the task's reference actions, which the diagnosis does not see."""
    runs = json.loads(path.read_text(encoding="utf-8"))
    rows = [_row(f"airline-{r['task_id']}", "airline", r["reward"], r["traj"]) for r in runs]
    rows = [row | {"repeat": run["trial"], "tools": []} for row, run in zip(rows, runs, strict=True)]
    found = diagnose(rows, {})
    claimed: Counter[Mode] = Counter()
    agreed: Counter[Mode] = Counter()
    for finding, run in zip(found.findings, (r for r in runs if r["reward"] < 1), strict=True):
        wanted = {action["name"] for action in run["info"]["task"]["actions"] if changes_state(action["name"])}
        made = {call["function"]["name"] for message in run["traj"] for call in message.get("tool_calls") or ()}
        missing, extra = bool(wanted - made), finding.evidence.quote not in wanted
        claimed[finding.mode] += 1
        agreed[finding.mode] += {
            Mode.NO_CALL: missing,
            Mode.STOPPED_EARLY: missing,
            Mode.NEEDLESS_CALL: extra,
            Mode.WRONG_TOOL: missing and extra,
        }.get(finding.mode, False)
    judged = (Mode.NO_CALL, Mode.STOPPED_EARLY, Mode.NEEDLESS_CALL, Mode.WRONG_TOOL)
    lines = [
        f"{mode.value:24}{count:4}" + (f"{agreed[mode]:4} agree" if mode in judged else "")
        for mode, count in claimed.most_common()
    ]
    return "\n".join([f"{found.failures} failures of {found.episodes} airline runs", *lines])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--first-seed", type=int, default=10, help="the rules' thresholds were set on seeds 0 and 1")
    parser.add_argument("--per-skill", type=int, default=40)
    parser.add_argument("--modes", action="store_true", help="print the table of modes, too")
    parser.add_argument("--airline", type=Path, help="instead: τ-bench's runs, as gpt-4o-airline.json")
    parser.add_argument("--confusions", action="store_true", help="print what is taken for what")
    options = parser.parse_args()
    if options.airline is not None:
        print(airline(options.airline))
        return 0
    tallies = {place: Tally() for place in ("corpus", *DEV_PLACES)}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        tallies["corpus"].add(corpus_cases(seed))
        for place, beside in DEV_PLACES.items():
            tallies[place].add(dev_cases(seed, options.per_skill, beside))
    print(table(tallies, FailureFamily))
    if options.modes:
        print(f"\n{table(tallies, Mode)}")
    total, ours, theirs = grounding_seen(corpus_cases(options.first_seed))
    print(f"\ncorpus of seed {options.first_seed}: {total} arguments, an origin found for {ours};", end=" ")
    print(f"agentpile's value flow explains {theirs} calls")
    if options.confusions:
        for place, tally in tallies.items():
            for (family, truth, claimed), count in tally.confused.most_common():
                print(f"{place:14} {family:8} {truth:22} taken for {claimed:22} {count}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
