"""What an answer claims to have done, or promises to do, measured against the tools that were called."""

from __future__ import annotations

import re
from collections.abc import Collection

READING = frozenset(
    ("get", "find", "search", "list", "check", "calculate", "think", "read", "look", "view", "show", "fetch", "query")
)
"""First words of tools that change nothing: to speak of them is no claim."""
IRREGULAR = {
    "send": "sent", "buy": "bought", "make": "made", "pay": "paid", "set": "set", "put": "put", "give": "given",
    "write": "written", "run": "run", "begin": "begun", "take": "taken", "withdraw": "withdrawn",
}  # fmt: skip
SENTENCE = re.compile(r"[^.!?\n]+[.!?]?")


def claimed_actions(text: str, tools: Collection[str], done: Collection[str]) -> str | None:
    """The first sentence that claims or promises the action of a tool, when no tool with that verb was called with
    success. The sentence names verb and object of the tool, as in `I have refunded order 42` for refund_order."""
    did = {_parts(name)[0] for name in done}
    for sentence in (found.group() for found in SENTENCE.finditer(text)):
        low = sentence.lower()
        for name in sorted(tools):
            verb, objects = _parts(name)
            if not objects or verb in READING or verb in did:
                continue
            if _claims(low, verb) and any(re.search(rf"\b{re.escape(o.rstrip('s'))}", low) for o in objects):
                return sentence.strip()
    return None


def changes_state(tool: str) -> bool:
    """Whether a tool, by the verb in its name, does more than read."""
    return _parts(tool)[0] not in READING


def _parts(tool: str) -> tuple[str, list[str]]:
    """Verb and objects of a tool's name."""
    split = [w.lower() for w in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", tool)]
    return (split[0], split[1:]) if split else ("", [])


def _claims(sentence: str, verb: str) -> bool:
    past = _past(verb)
    done = rf"\b(?:have|has|i've|been|was|were|is now|are now)\b(?: \w+ly| now| already)* {past}\b|\bi {past}\b"
    will = rf"\b(?:i will|i'll|i am going to|i'm going to)\b(?: now| also)? {re.escape(verb)}\b"
    return re.search(f"{done}|{will}", sentence) is not None


def _past(verb: str) -> str:
    """A pattern for the past participle."""
    if verb in IRREGULAR:
        return IRREGULAR[verb]
    if verb.endswith("e"):
        return re.escape(verb) + "d"
    if verb.endswith("y") and verb[-2:-1] not in "aeiou":
        return re.escape(verb[:-1]) + "ied"
    return re.escape(verb) + re.escape(verb[-1:]) + "?ed"
