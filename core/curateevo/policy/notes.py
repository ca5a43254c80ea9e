"""A note's text, written from what it points at. A policy says where to look, never what a note says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from curateevo.policy.operators.items import MemoryItem, NoteKind
from curateevo.trajectories.flags import reads_like_error
from curateevo.trajectories.model import Call, JsonObject, Trajectory, Turn, parameters, tool_name

TITLE_CHARS = 200
PART_CHARS = 160
"""Of a quoted or described thing within a note."""
MAX_NOTE_CHARS = 600
"""Of a note that is written here; a longer fact is refused by the gate."""


class Note(NamedTuple):
    title: str
    """Searched, never shown."""
    content: str
    """Empty when what the note points at is not there."""


def render_note(note: MemoryItem, texts: Mapping[int, Trajectory], family: str) -> Note:
    """The note's text. `texts` holds the rows that it points at; `family` is that of its row."""
    title, content = _write(note, texts, family)
    return Note(title[:TITLE_CHARS], content if note.kind is NoteKind.FACT else _part(content, MAX_NOTE_CHARS))


def _write(note: MemoryItem, texts: Mapping[int, Trajectory], family: str) -> Note:
    source = texts[note.row]
    turn = source.turns[note.turn]
    if note.kind is NoteKind.RULE:
        return _rule(source, None if note.against is None else texts[note.against], family)
    if note.result >= len(turn.calls):
        return Note("", "")
    call, text = turn.calls[note.result], turn.results[note.result]
    span = " ".join(text[note.start : note.end].split())
    match note.kind:
        case NoteKind.FACT:
            return Note(span.rpartition(" ")[0] or span, span)
        case NoteKind.CONSTRAINT:
            return Note(call.name, f"{call.name} may answer: {span}" if span and reads_like_error(text) else "")
        case NoteKind.TOOL:
            return _tool(call, source.tools)
        case NoteKind.RECOVERY:
            return _recovery(call, text, source.turns[note.turn + 1 :])


def _tool(call: Call, tools: tuple[JsonObject, ...]) -> Note:
    schema = next((tool for tool in tools if tool_name(tool) == call.name), None)
    if schema is None:
        return Note("", "")
    declared = parameters(schema)
    required = declared.get("required", ())
    names = [
        f"{name}{'' if name in required else '?'}{_type(value)}"
        for name, value in declared.get("properties", {}).items()
    ]
    described = _part(str((schema.get("function") or schema).get("description") or ""))
    content = f"{call.name}({_part(', '.join(names), 2 * PART_CHARS)})"
    return Note(f"{call.name} {described}", f"{content}: {described}" if described else content)


def _type(value: object) -> str:
    found = value.get("type") if isinstance(value, dict) else None
    return f": {found}" if isinstance(found, str) else ""


def _recovery(call: Call, error: str, later: tuple[Turn, ...]) -> Note:
    """What the next call that succeeds does differently, in names only: its values belong to another case."""
    good = next((t for t in later if t.calls and not any(map(reads_like_error, t.results))), None)
    if good is None or not reads_like_error(error):
        return Note("", "")
    follow = good.calls[0]
    before, after = call.parsed() or {}, follow.parsed() or {}
    changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    if follow.name != call.name:
        then = f"call {follow.name}({', '.join(after)})"
    elif changed:
        then = f"call it again with another {', '.join(changed)}"
    else:
        then = "call it again"
    quoted = _part(" ".join(error.split()))
    return Note(f"{call.name} {quoted}", f'When {call.name} answers "{quoted}", {_part(then)}.')


def _rule(source: Trajectory, against: Trajectory | None, family: str) -> Note:
    steps = _steps(source, failed=False)
    proven = source.outcome.success is True and (against is None or against.outcome.success is False)
    if not steps or not proven:
        return Note("", "")
    prompt = " ".join(source.task.prompt.split())
    named = family if source.task.tags else "such a task"
    content = f"For {_part(named)}: {_in_order(steps)}."
    if against is not None:
        content += f" Not: {_in_order(_steps(against, failed=True)) or 'an answer without a call'}."
    return Note(f"{family if source.task.tags else ''} {prompt}".strip(), content)


def _steps(source: Trajectory, *, failed: bool) -> list[str]:
    """Tools of calls in order, repeats folded; of calls that `failed` as well, or without them."""
    names: list[str] = []
    for turn in source.turns:
        for call, result in zip(turn.calls, turn.results, strict=True):
            if (failed or not reads_like_error(result)) and names[-1:] != [call.name]:
                names.append(call.name)
    return names


def _in_order(steps: list[str]) -> str:
    return _part(", then ".join(steps), 200)


def _part(text: str, limit: int = PART_CHARS) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
