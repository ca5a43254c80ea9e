"""The rules: each looks at a failed episode beside its peers and makes one claim, or none. The first claim counts.

Their order is from the plain to the inferred: what the checks acquit, what breaks by itself, what a note, a claim or
the choice of tools shows, then values, then what an error left undone; at last what only the suite's checks can tell.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from curateevo.evolver.diagnosis.episode import Argument, Episode, Made, Origin
from curateevo.evolver.diagnosis.modes import Mode
from curateevo.evolver.diagnosis.peers import ODD_SHARE, USUAL_SHARE, Peers
from curateevo.evolver.diagnosis.said import changes_state, claimed_actions
from curateevo.trajectories.flags import MALFORMED, words
from curateevo.trajectories.model import tool_name

LOOP_CALLS = 3
SAME_SHARE = 0.25
"""Successes that look just the same, from which on a label of failure is doubted."""
MALFORMED_CHECK = "malformed_call"
LENGTH_CHECKS = ("out_of_turns", "context_full")
SCHEMA_ERROR = re.compile(r"\b(arguments?|parameters?|schema|required|unknown tool|no such tool|tool)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Claim:
    """A mode, and the words of turn `turn` that show it."""

    mode: Mode
    turn: int
    quote: str


Rule = Callable[[Episode, Peers], Claim | None]


def malformed(episode: Episode, peers: Peers) -> Claim | None:
    """Text that was meant to be a call, or arguments that do not parse."""
    for number, turn in enumerate(episode.turns):
        if not turn.calls and MALFORMED.search(turn.content):
            return Claim(Mode.MALFORMED_CALL, number, turn.content)
        for call in turn.calls:
            if call.parsed() is None:
                return Claim(Mode.MALFORMED_CALL, number, call.arguments)
    if episode.checks.get(MALFORMED_CHECK) and episode.answer:
        return Claim(Mode.MALFORMED_CALL, len(episode.turns) - 1, episode.answer)
    return None


def repeated(episode: Episode, peers: Peers) -> Claim | None:
    """A call that had failed, made again as it was, and failing again."""
    failed: set[str] = set()
    for made in episode.made:
        if made.failed and made.key in failed:
            return Claim(Mode.REPEATED_FAILURE, made.turn, made.call.arguments)
        if made.failed:
            failed.add(made.key)
    return None


def loop(episode: Episode, peers: Peers) -> Claim | None:
    """One call made again and again, with one and the same result."""
    counts: Counter[tuple[str, str]] = Counter()
    for made in episode.made:
        counts[made.key, made.result] += 1
        if counts[made.key, made.result] >= LOOP_CALLS:
            return Claim(Mode.LOOP, made.turn, made.call.arguments)
    return None


def over_long(episode: Episode, peers: Peers) -> Claim | None:
    """The turns or the context were used up."""
    if episode.turns and any(episode.checks.get(check) for check in LENGTH_CHECKS):
        return Claim(Mode.OVER_LONG, len(episode.turns) - 1, episode.last_words)
    return None


def schema(episode: Episode, peers: Peers) -> Claim | None:
    """A call that does not fit the tools, and no later one that does. Without schemas, the tool's word is taken.

    Flailing after a value from nowhere was refused is that value's fault."""
    if not episode.tools:
        last = episode.made[-1] if episode.made else None
        if last is not None and last.failed and SCHEMA_ERROR.search(last.result):
            return Claim(Mode.SCHEMA_VIOLATION, last.turn, last.result)
        return None
    fits = [peers.schemas.fits(made.call, episode.tools) for made in episode.made]
    names = {tool_name(tool) for tool in episode.tools}
    for made, fit in zip(episode.made, fits, strict=True):
        known = made.call.name in names
        later = zip(episode.made[made.number + 1 :], fits[made.number + 1 :], strict=True)
        if not fit and not any(ok and (not known or m.call.name == made.call.name) for m, ok in later):
            if any(_refused(m, a) for m in episode.made[: made.number] for a in m.arguments):
                return memory(episode, peers) or drift(episode, peers) or invented(episode, peers)
            return Claim(Mode.SCHEMA_VIOLATION, made.turn, made.call.arguments if known else made.call.name)
    return None


def memory(episode: Episode, peers: Peers) -> Claim | None:
    """A value that only a note gave, in a call that failed or was wrong; or a note had the value, and was not read."""
    wrong_values = _right_tools(episode) is True and not _right_calls(episode)
    for made in episode.made:
        if any(a.origin is Origin.NOTES for a in made.arguments) and (made.failed or wrong_values):
            return Claim(Mode.MEMORY_MISLED, made.turn, made.result if made.failed else made.call.arguments)
    for made in episode.made:
        for argument in made.arguments:
            if argument.origin is Origin.NOWHERE and _noted(episode.notes, made, argument.name):
                return Claim(Mode.MEMORY_IGNORED, made.turn, argument.value)
    return None


def _noted(notes: str, made: Made, argument: str) -> bool:
    """Whether one note names the argument together with another value of the call."""
    others = [words(a.value) for a in made.arguments if a.name != argument and a.origin is Origin.TEXT]
    lines = (set(words(line)) for line in notes.splitlines())
    return any(argument.lower() in line and any(o and line >= set(o) for o in others) for line in lines)


def execution_gap(episode: Episode, peers: Peers) -> Claim | None:
    """The answer says that something is done, or will be, and no call did it."""
    tools = {tool_name(tool) for tool in episode.tools} | set(peers.tools)
    done = {made.call.name for made in episode.made if not made.failed}
    if (claim := claimed_actions(episode.answer, tools, done)) is not None:
        return Claim(Mode.EXECUTION_GAP, len(episode.turns) - 1, claim)
    return None


def sibling(episode: Episode, peers: Peers) -> Claim | None:
    """Beside successes on the same task: actions that none of them took, that all took, or took with other values."""
    runs = peers.runs.get(episode.task)
    if not runs:
        return None
    acted = [_actions(run) for run in runs]
    mine = _actions(episode)
    needed = set.intersection(*({m.call.name for m in actions} for actions in acted))
    taken = {m.call.name for actions in acted for m in actions}
    missing = needed - {m.call.name for m in mine}
    extra = next((m for m in mine if m.call.name not in taken), None)
    if extra is not None:
        return Claim(Mode.WRONG_TOOL if missing else Mode.NEEDLESS_CALL, extra.turn, extra.call.name)
    if missing:
        if not episode.made or episode.made[-1].failed:
            return None
        return Claim(Mode.STOPPED_EARLY, episode.made[-1].turn, episode.made[-1].call.name)
    keys = {m.key for actions in acted for m in actions}
    other = next((m for m in mine if m.key not in keys), None)
    return Claim(Mode.WRONG_ARGUMENT, other.turn, other.call.arguments) if other is not None else None


def _actions(episode: Episode) -> list[Made]:
    """Calls that changed something."""
    return [m for m in episode.made if not m.failed and changes_state(m.call.name)]


def choice(episode: Episode, peers: Peers) -> Claim | None:
    """Tools missing, wrong or too many: by the suite's checks, by peers, by calls that nobody asked for."""
    if _right_tools(episode) is True:
        return None
    made, last = episode.made, len(episode.turns) - 1
    if not made:
        silent = peers.known and peers.share_like(()) >= 1 - USUAL_SHARE
        if not episode.turns or (silent and _right_tools(episode) is not False):
            return None
        return Claim(Mode.NO_CALL, last, episode.turns[-1].content)
    odd = [m for m in made if peers.alike and peers.share_with(m.call.name) < ODD_SHARE]
    missing = [t for t in peers.tools if peers.share_with(t) >= USUAL_SHARE and all(m.call.name != t for m in made)]
    if odd and missing:
        return Claim(Mode.WRONG_TOOL, odd[0].turn, odd[0].call.name)
    if (detour := _detour(episode, peers)) is not None:
        return Claim(Mode.NEEDLESS_CALL, detour.turn, detour.call.name)
    if made[-1].failed:
        return None
    if peers.known and peers.share_beyond(episode.signature) >= USUAL_SHARE:
        return Claim(Mode.STOPPED_EARLY, made[-1].turn, made[-1].call.name)
    if episode.checks.get("nothing_needless") is False:
        needless = (odd or list(made))[-1]
        return Claim(Mode.NEEDLESS_CALL, needless.turn, needless.call.name)
    if odd:
        return Claim(Mode.NEEDLESS_CALL, odd[0].turn, odd[0].call.name)
    if _right_tools(episode) is False:
        mode = Mode.STOPPED_EARLY if _learnt_and_left(episode) else Mode.WRONG_TOOL
        return Claim(mode, made[-1].turn, made[-1].call.name)
    return None


def _right_tools(episode: Episode) -> bool | None:
    """What the suite's checks say of the tools that were called; None when they say nothing."""
    return episode.checks.get("tools", episode.checks.get("right_tool"))


def _right_calls(episode: Episode) -> bool:
    """Whether the suite's checks say that the very calls were right."""
    return episode.checks.get("calls", episode.checks.get("right_arguments")) is True


def _detour(episode: Episode, peers: Peers) -> Made | None:
    """A call before the last that nobody asked for, whose result nothing uses."""
    for made in episode.made[:-1]:
        unasked = made.arguments and all(a.origin is Origin.NOWHERE for a in made.arguments)
        if not unasked or made.failed or peers.share_with(made.call.name) >= USUAL_SHARE:
            continue
        fresh = set(words(made.result))
        later = {w for m in episode.made[made.number + 1 :] for a in m.arguments for w in words(a.value)}
        if not fresh & later:
            return made
    return None


def _learnt_and_left(episode: Episode) -> bool:
    """Whether the last result gave a value for an argument of a tool that was not called then."""
    last = episode.made[-1]
    called = {m.call.name for m in episode.made}
    wanted: set[str] = set()
    for tool in episode.tools:
        if tool_name(tool) not in called:
            wanted.update((tool.get("function", tool).get("parameters") or {}).get("properties") or {})
    return any(bound_values(name, last.result) for name in wanted)


def bound_values(name: str, text: str) -> list[str]:
    """Values that stand right behind an argument's name, as in `order 42` or `"order_id": "A42"`."""
    return re.findall(rf"\b{re.escape(name)}\b[\"']?\s*[:=#]?\s*[\"']?([\w-]+)", text, re.IGNORECASE)


def swapped(episode: Episode, peers: Peers) -> Claim | None:
    """A value that peers give to another argument of the call, never to this one, where they never mix the two."""
    for made in episode.made:
        for argument in made.arguments:
            own = peers.held.get(argument.name, set())
            others = (peers.held.get(a.name, set()) for a in made.arguments if a.name != argument.name)
            if own and argument.value not in own and any(argument.value in o and own.isdisjoint(o) for o in others):
                return Claim(Mode.WRONG_ARGUMENT, made.turn, made.call.arguments)
    return None


def drift(episode: Episode, peers: Peers) -> Claim | None:
    """One value was settled by results and earlier calls, and a later call gives another that nothing explains."""
    for made in episode.made:
        before = episode.made[: made.number]
        for argument in made.arguments:
            told = {v for m in before for v in bound_values(argument.name, m.result)}
            settled = told | {a.value for m in before for a in m.arguments if a.name == argument.name}
            if len(settled) != 1 or argument.value in settled or argument.origin is Origin.NOTES:
                continue
            unexplained = argument.origin is Origin.NOWHERE and not peers.free(made.call.name, argument.name)
            if unexplained or (told and made.failed and argument.name.lower() in words(made.result)):
                return Claim(Mode.BINDING_DRIFT, made.turn, argument.value)
    return None


def invented(episode: Episode, peers: Peers) -> Claim | None:
    """A value that stands in no earlier text, where successes find theirs, or that the tool refuses by name."""
    for made in episode.made:
        for argument in made.arguments:
            if argument.origin is not Origin.NOWHERE:
                continue
            if _refused(made, argument) or not peers.free(made.call.name, argument.name):
                return Claim(Mode.INVENTED_ARGUMENT, made.turn, argument.value)
    return None


def _refused(made: Made, argument: Argument) -> bool:
    """Whether a value from nowhere was refused by its argument's name."""
    return argument.origin is Origin.NOWHERE and made.failed and argument.name.lower() in words(made.result)


def recovery(episode: Episode, peers: Peers) -> Claim | None:
    """The last call failed, and nothing else was tried."""
    if episode.made and episode.made[-1].failed:
        return Claim(Mode.RECOVERY_FAILURE, episode.made[-1].turn, episode.made[-1].result)
    return None


def acquitted(episode: Episode, peers: Peers) -> Claim | None:
    """The suite's own checks find the calls right, and the episode is a failure all the same."""
    if episode.turns and _right_calls(episode):
        return Claim(Mode.NOISY_LABEL, len(episode.turns) - 1, episode.last_words)
    return None


def looks_right(episode: Episode, peers: Peers) -> Claim | None:
    """No rule finds fault, there are no checks, and many successes did just the same."""
    alike = not episode.checks and peers.known and peers.share_like(episode.signature) >= SAME_SHARE
    return Claim(Mode.NOISY_LABEL, len(episode.turns) - 1, episode.last_words) if alike and episode.turns else None


def arguments(episode: Episode, peers: Peers) -> Claim | None:
    """The suite finds the tools right and the calls wrong."""
    if episode.made and _right_tools(episode) is True:
        return Claim(Mode.WRONG_ARGUMENT, episode.made[-1].turn, episode.made[-1].call.arguments)
    return None


RULES: tuple[Rule, ...] = (
    acquitted,
    malformed,
    repeated,
    loop,
    over_long,
    schema,
    memory,
    execution_gap,
    choice,
    drift,
    swapped,
    invented,
    sibling,
    recovery,
    looks_right,
    arguments,
)
