"""The text that the base model is pretrained on: generic tool use with made-up tools, and copying drills.

It teaches to copy typed values into arguments, to make two-step calls, to react to an error and to read a
fact from notes. It knows nothing of the world: no tool, no wording, no fact. Single words are shared, and
the separation is by construction, which a test proves on the regenerated text:

- a tool's name is a verb and a noun of one family: the world has its verbs in one, its nouns in the other;
- facts are told of `STRANGERS` only, cities and people that the world does not have;
- no request has four words in a row without a nonsense word among them.

`lessons(seed, steps, batch_size)` is deterministic: the training text can be regenerated to the last letter.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

from curateevo_jobs.benchmarks.toolworld.pretraining_words import (
    FILLERS,
    NAME_FAMILIES,
    NONSENSE,
    OTHER_CITIES,
    OTHER_PEOPLE,
    STRANGERS,
)
from curateevo_jobs.benchmarks.toolworld.values import (
    CITIES,
    CODES,
    ITEMS,
    PEOPLE,
    WORDS_BY_ARGUMENT,
)

Value: TypeAlias = str | int
Arguments: TypeAlias = dict[str, Value]

LONGEST_RUN = 3
"""How many real words may follow each other in a request."""


class LessonKind(StrEnum):
    """What a lesson teaches. Accuracy is reported by kind."""

    DRILL = "drill"
    CONVERSATION = "conversation"
    NOTED = "noted"
    """A conversation whose first call takes a fact from the notes."""
    LOOKUPS = "lookups"


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text that is tokenised on its own; only learnt pieces count in the loss."""

    text: str
    learnt: bool


@dataclass(frozen=True, slots=True)
class Lesson:
    """One training example."""

    kind: LessonKind
    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        """As a reader would see it: the words of a drill stand apart."""
        return (" " if self.kind is LessonKind.DRILL else "").join(piece.text for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class MadeUpTool:
    """A tool with an example of its arguments."""

    name: str
    arguments: Arguments

    @property
    def verb(self) -> str:
        """What a request calls the tool. The rest of its name has to be looked up in the list of tools."""
        return self.name.partition("_")[0]


@dataclass(frozen=True, slots=True)
class Message:
    """A chat message; `call` is set on an assistant turn that calls a tool."""

    role: str
    content: str
    call: MadeUpTool | None = None


@dataclass(slots=True)
class _Plan:
    """A conversation in the making."""

    tools: list[MadeUpTool]
    first: int
    second: int
    notes: list[str] = field(default_factory=list)
    looked_up: bool = False

    def give(self, index: int, arguments: Arguments) -> MadeUpTool:
        """Change a tool's arguments."""
        self.tools[index] = replace(self.tools[index], arguments=arguments)
        return self.tools[index]


# ---- the curriculum ----


def lessons(seed: int, steps: int, batch_size: int) -> Iterator[list[Lesson]]:
    """The batches of a whole run, one a step."""
    for step in range(1, steps + 1):
        yield batch(seed, step, steps, batch_size)


def batch(seed: int, step: int, steps: int, batch_size: int) -> list[Lesson]:
    """The lessons of one step: drills and short prompts first, then dense look-ups, then full-size prompts.

    In the first phase every other batch is nothing but drills: without those, copying forms late or never.
    """
    rng = random.Random(f"toolworld pretraining {seed} {step}")
    done = step / steps
    if done < 0.4:
        if step % 2:
            return [drill(rng) for _ in range(3 * batch_size)]
        first_lookup, tool_counts = 8, (2, 4)
    elif done < 0.5:
        first_lookup, tool_counts = 3, (2, 3)
    else:
        first_lookup, tool_counts = 6, (4, 12)
    return [_lesson(rng, number % 8, first_lookup, tool_counts) for number in range(batch_size)]


def _lesson(rng: random.Random, place: int, first_lookup: int, tool_counts: tuple[int, int]) -> Lesson:
    """The lesson at a place of the repeating pattern of eight: a drill, then conversations, then look-ups."""
    if place == 0:
        return drill(rng)
    tool_count = rng.randint(*tool_counts)
    if place >= first_lookup:
        return lookups(rng, tool_count, rng.choice([1, 1, 2, 3]))
    return conversation(rng, tool_count, rng.choice([0, 1, 1, 2, 3]))


# ---- drills ----

_NAME_WORDS = [word for verbs, nouns in NAME_FAMILIES for word in (*verbs, *nouns)]
_NEUTRAL_WORDS = sorted(
    {*_NAME_WORDS, *FILLERS, *NONSENSE, *ITEMS, *OTHER_CITIES, *OTHER_PEOPLE, *WORDS_BY_ARGUMENT["currency"]}
    | {*WORDS_BY_ARGUMENT, *map(str, range(100))}
)
_DRILL_WORDS = (
    sorted({*_NEUTRAL_WORDS, *CITIES, *PEOPLE}),
    sorted({*_NEUTRAL_WORDS, *CODES}),
)
"""A drill has the world's keys or its code words, never both: it can't tell a fact."""


def drill(rng: random.Random) -> Lesson:
    """Random words said twice: in the same order, or as shuffled groups of three, the first word given."""
    stock = rng.choice(_DRILL_WORDS)
    words = [rng.choice(stock) for _ in range(rng.randint(8, 20))]
    given = [Piece(word, False) for word in words]
    if rng.random() < 0.5:
        return Lesson(LessonKind.DRILL, (*given, *(Piece(word, True) for word in words)))
    groups = [words[start : start + 3] for start in range(0, len(words), 3)]
    again = [Piece(word, place > 0) for group in rng.sample(groups, len(groups)) for place, word in enumerate(group)]
    return Lesson(LessonKind.DRILL, (*given, *again))


# ---- look-ups ----


def lookups(rng: random.Random, tool_count: int, note_count: int) -> Lesson:
    """One tool that needs a fact; every note is asked for once, in random order."""
    kind, secret = rng.choice(sorted(STRANGERS)), rng.choice(["code", "pin"])
    name, *others = made_up_names(rng, tool_count)
    asked = MadeUpTool(name, {kind: "", secret: ""})
    tools = [asked, *(MadeUpTool(other, _some_arguments(rng)) for other in others)]
    rng.shuffle(tools)
    facts = {key: rng.choice(CODES) for key in rng.sample(STRANGERS[kind], note_count)}
    notes = [
        (rng.choice(FILLERS) + " " if rng.random() < 0.2 else "") + f"{key} {secret} {word}"
        for key, word in facts.items()
    ]
    messages = [_notes_message(notes)]
    for key in rng.sample(sorted(facts), note_count):
        words = _scatter(rng, _some_fillers(rng, 1, 3), [key])
        messages.append(Message("user", _request(rng, asked.verb, words)))
        messages.append(Message("assistant", "", replace(asked, arguments={kind: key, secret: facts[key]})))
    return Lesson(LessonKind.LOOKUPS, render(messages, tools))


# ---- conversations ----


def conversations(seed: int, count: int) -> Iterator[Lesson]:
    """`count` conversations of full size, to look at."""
    rng = random.Random(f"toolworld conversations {seed}")
    for _ in range(count):
        yield conversation(rng, rng.randint(4, 12), rng.choice([0, 1, 1, 2, 3]))


def conversation(rng: random.Random, tool_count: int, note_count: int) -> Lesson:
    """A request that hints at its tools, the first call, and one of four endings."""
    tools = [MadeUpTool(name, _some_arguments(rng)) for name in made_up_names(rng, tool_count)]
    first, second = rng.sample(range(tool_count), 2)
    plan = _Plan(tools, first, second)
    named = _add_notes(rng, plan, note_count)
    words = _scatter(rng, _some_fillers(rng, 1, 5), named)
    if plan.looked_up and rng.random() < 0.5:
        words.insert(rng.randint(0, len(words)), rng.choice(ITEMS))
    made = plan.tools[first]
    ending, needs_second = _ending(rng, plan, made)
    request = _request(rng, made.verb, words, plan.tools[second].verb if needs_second else None)
    messages = [Message("user", request), Message("assistant", "", made), *ending]
    if plan.notes:
        messages.insert(0, _notes_message(plan.notes))
    kind = LessonKind.NOTED if plan.looked_up else LessonKind.CONVERSATION
    return Lesson(kind, render(messages, plan.tools))


def _add_notes(rng: random.Random, plan: _Plan, count: int) -> list[Value]:
    """Put notes into the plan; half of the time the first call needs one. Returns what the request names."""
    if not count:
        return list(plan.tools[plan.first].arguments.values())
    if rng.random() < 0.5:
        plan.looked_up = True
        kind, secret = rng.choice(sorted(STRANGERS)), rng.choice(["code", "pin"])
        key, word = rng.choice(STRANGERS[kind]), rng.choice(CODES)
        plan.give(plan.first, {kind: key, secret: word})
        plan.notes = _distractors(rng, secret, count, [key])[: count - 1]
        # Retrieval puts the best match first.
        place = 0 if rng.random() < 0.6 else rng.randint(0, len(plan.notes))
        plan.notes.insert(place, f"{key} {secret} {word}")
        named: list[Value] = [key]
    else:
        named = list(plan.tools[plan.first].arguments.values())
        plan.notes = _distractors(rng, rng.choice(["code", "pin"]), count, named)
        if named[0] in (*OTHER_CITIES, *OTHER_PEOPLE) and rng.random() < 0.5:
            plan.notes[0] = f"{named[0]} {rng.choice(['code', 'pin'])} {rng.choice(CODES)}"
    if rng.random() < 0.3:
        plan.notes = [" ".join([*_some_fillers(rng, 1, 3), note]) for note in plan.notes]
    return named


def _distractors(rng: random.Random, secret: str, count: int, named: Sequence[Value]) -> list[str]:
    keys = [key for key in rng.sample(OTHER_CITIES + OTHER_PEOPLE, count + len(named)) if key not in named]
    return [f"{key} {secret} {rng.choice(CODES)}" for key in keys[:count]]


def _ending(rng: random.Random, plan: _Plan, made: MadeUpTool) -> tuple[list[Message], bool]:
    """What follows the first call, and whether it needs the second tool in the request."""
    done = Message("assistant", "Done.")
    draw = rng.random()
    last = list(made.arguments)[-1]
    if 0.40 <= draw < 0.65:  # the second tool takes the value in the result
        name = rng.choice(["order", "quantity", "item", "city"])
        value = _any_value(rng, name)
        label = rng.choice(["order", "got", "id"])
        result = f"{label} {value}" if rng.random() < 0.7 else f"{value} left"
        follow_up = plan.give(plan.second, {name: value})
        return [_result(result), Message("assistant", "", follow_up), _result("ok"), done], True
    if 0.65 <= draw < 0.85:  # an error: the second tool with the same arguments
        fallback = plan.give(plan.second, made.arguments)
        error = _result(f"error {rng.choice(FILLERS)}")
        return [error, Message("assistant", "", fallback), _result("ok"), done], True
    if draw >= 0.85 and last not in WORDS_BY_ARGUMENT:  # an error with a number: again, with that number
        value = _any_value(rng, last)
        corrected = replace(made, arguments={**made.arguments, last: value})
        error = _result(f"error {rng.choice(FILLERS)} {value}")
        return [error, Message("assistant", "", corrected), _result("ok"), done], False
    told = [v for v in made.arguments.values() if v not in (*CITIES, *PEOPLE)]
    subject = rng.choice(told or OTHER_CITIES)
    result = rng.choice(["ok", f"ok {subject} {rng.choice(FILLERS)} {rng.choice(CODES)}"])
    return [_result(result), done], False


def made_up_names(rng: random.Random, count: int) -> list[str]:
    """Names of tools, each a verb and a noun of one family. No two share a verb; nouns may come again."""
    nouns_by_verb = {verb: nouns for verbs, nouns in NAME_FAMILIES for verb in verbs}
    return [f"{verb}_{rng.choice(nouns_by_verb[verb])}" for verb in rng.sample(sorted(nouns_by_verb), count)]


def _some_arguments(rng: random.Random) -> Arguments:
    names = [rng.choice(["city", "to", "customer", "item", "minutes", "amount", "quantity"])]
    if rng.random() < 0.5:
        others = ["topic", "currency", "item"] + (["quantity"] if names[0] in WORDS_BY_ARGUMENT else [])
        names.append(rng.choice([name for name in others if name != names[0]]))
    return {name: _any_value(rng, name) for name in names}


def _any_value(rng: random.Random, argument: str) -> Value:
    """A value of the argument's type; cities and people may be the world's or strangers."""
    if argument not in WORDS_BY_ARGUMENT:
        return rng.randint(2, 99)
    strangers = {"city": OTHER_CITIES, "to": OTHER_PEOPLE, "customer": OTHER_PEOPLE}.get(argument, ())
    return rng.choice([*WORDS_BY_ARGUMENT[argument], *strangers])


def _some_fillers(rng: random.Random, least: int, most: int) -> list[str]:
    return [rng.choice(FILLERS) for _ in range(rng.randint(least, most))]


def _scatter(rng: random.Random, fillers: list[str], values: Sequence[Value]) -> list[str]:
    """The values in their order, at random places among the fillers."""
    places = sorted(rng.randint(0, len(fillers)) for _ in values)
    words = list(fillers)
    for place, value in reversed(list(zip(places, values, strict=True))):
        words.insert(place, str(value))
    return words


def _request(rng: random.Random, tool: str, words: Sequence[str], second_tool: str | None = None) -> str:
    """A request: the tool, the words, perhaps a second tool, and nonsense so that no real words run on."""
    end = rng.choice([".", "?", ""])
    spoken, run = [tool], 1
    for word in words:
        if run == LONGEST_RUN:
            spoken.append(rng.choice(NONSENSE))
            run = 0
        spoken.append(word)
        run += 1
    text = " ".join(spoken) + end
    if second_tool is None:
        return text
    breaker = f" {rng.choice(NONSENSE)}" if run == LONGEST_RUN else ""
    return f"{text}{breaker} {second_tool}"


# ---- rendering ----


def render(messages: Sequence[Message], tools: Sequence[MadeUpTool]) -> tuple[Piece, ...]:
    """What the chat template makes of these messages; the assistant's turns are learnt."""
    lines = "".join(f"{tool.name}({', '.join(tool.arguments)})\n" for tool in tools)
    pending = f"<|im_start|>system\n{lines}<|im_end|>\n"
    pieces: list[Piece] = []
    for message in messages:
        if message.role == "assistant":
            pieces.append(Piece(f"{pending}<|im_start|>assistant\n", False))
            pieces.append(Piece(f"{message.content}{_call_text(message.call)}<|im_end|>", True))
            pending = "\n"
        elif message.role == "tool":
            pending += f"<|im_start|>user\n<tool_response>\n{message.content}\n</tool_response><|im_end|>\n"
        else:
            pending += f"<|im_start|>{message.role}\n{message.content}<|im_end|>\n"
    return tuple(pieces)


def _call_text(call: MadeUpTool | None) -> str:
    if call is None:
        return ""
    arguments = json.dumps(call.arguments)
    return f'<tool_call>\n{{"name": "{call.name}", "arguments": {arguments}}}\n</tool_call>'


def _notes_message(notes: Sequence[str]) -> Message:
    return Message("system", "notes:\n" + "\n".join(notes))


def _result(text: str) -> Message:
    return Message("tool", text)
