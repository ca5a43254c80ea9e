"""What a version over- and under-represents, as the page shows it: one line per value, a dot with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from curateevo.report.view import number_of, text_of
from curateevo.report.wording import number, share, short

MAX_NAME = 60
MAX_DIMENSIONS, MAX_VALUES = 12, 16
TITLES = {"turns": "turns of the trajectory", "family": "task family", "tool": "tool called"}
WIDTH, HEIGHT, EDGE = 216, 22, 12
SPAN = 8.0
"""The scale is logarithmic, from 1 / SPAN to SPAN; an arrow stands for what is beyond."""
TICKS = ((1 / 8, "⅛"), (1 / 4, "¼"), (1 / 2, "½"), (1.0, "1"), (2.0, "2"), (4.0, "4"), (8.0, "8"))


@dataclass(frozen=True, slots=True)
class Ratio:
    """A share of SFT rows or RL tasks against that of the corpus; the ends are None where no interval is told."""

    share: float
    ratio: float
    low: float | None
    high: float | None

    @property
    def sure(self) -> bool:
        """Whether its interval leaves out 1: more or less than in the corpus."""
        return self.low is not None and self.high is not None and not self.low <= 1.0 <= self.high

    @property
    def told(self) -> str:
        """The ratio with its interval."""
        between = "" if self.low is None or self.high is None else f" ({number(self.low, 2)} to {number(self.high, 2)})"
        return f"× {number(self.ratio, 2)}{between}"


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    corpus: str
    sft: Ratio | None
    rl: Ratio | None

    @property
    def picture(self) -> Markup:
        return ratio_picture(self.sft, self.rl)


@dataclass(frozen=True, slots=True)
class Group:
    """One way to divide the rows, such as by tool."""

    title: str
    lines: tuple[Line, ...]


def groups_of(profile: object) -> tuple[Group, ...]:
    """From a profile that others wrote; values that can't be read are left out, and so is what has one value only."""
    found = profile.get("representation") if isinstance(profile, dict) else None
    out = []
    for dimension in _objects(found, "dimensions")[:MAX_DIMENSIONS]:
        lines = [line for raw in _objects(dimension, "values")[:MAX_VALUES] if (line := _line(raw)) is not None]
        name = text_of(dimension, "name")
        if len(lines) > 1:
            out.append(Group(TITLES.get(name, short(name, MAX_NAME)), tuple(lines)))
    return tuple(out)


def _line(raw: dict[str, Any]) -> Line | None:
    corpus = number_of(raw, "corpus")
    if corpus is None:
        return None
    return Line(short(text_of(raw, "value"), MAX_NAME), share(corpus), _ratio(raw, "sft"), _ratio(raw, "rl"))


def _ratio(raw: dict[str, Any], name: str) -> Ratio | None:
    part, ratio = number_of(raw, name, "share"), number_of(raw, name, "ratio")
    if part is None or ratio is None or not math.isfinite(ratio):
        return None
    return Ratio(part, ratio, number_of(raw, name, "low"), number_of(raw, name, "high"))


def most_biased(profile: object, limit: int) -> tuple[list[str], list[str]]:
    """The values whose SFT share is surely above, and surely below, that of the corpus, each with its ratio, the most
    so first."""
    over: list[tuple[float, str]] = []
    under: list[tuple[float, str]] = []
    for group in groups_of(profile):
        for line in group.lines:
            if line.sft is not None and line.sft.sure:
                side = over if line.sft.ratio > 1 else under
                side.append((line.sft.ratio, f"{group.title} {line.name} {line.sft.told}"))
    most = (sorted(over, key=lambda x: (-x[0], x[1])), sorted(under))
    return [text for _, text in most[0][:limit]], [text for _, text in most[1][:limit]]


def axis() -> Markup:
    """The scale over the pictures."""
    labels = (Markup('<text x="{x:.1f}" y="15">{t}</text>').format(x=_x(value), t=text) for value, text in TICKS)
    return _svg("axis", Markup("").join(labels))


def sample(kind: str) -> Markup:
    """The dot of SFT or RL for a line of text; its word stands beside it."""
    return Markup(
        '<svg class="icon" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">'
        '<g class="dot {}"><circle cx="8" cy="8" r="4"/></g></svg>'
    ).format(kind)


def ratio_picture(sft: Ratio | None, rl: Ratio | None) -> Markup:
    """SFT above (a disc), RL below (a ring), about the line of 1. Decoration: the numbers stand beside it."""
    parts = [
        Markup('<path class="{c}" d="M{x:.1f} 0V{h}"/>').format(c="one" if v == 1 else "tick", x=_x(v), h=HEIGHT)
        for v, _ in TICKS
    ]
    for kind, found in (("sft", sft), ("rl", rl)):
        if found is not None:
            parts += _dot(kind, found, HEIGHT / 2 if sft is None or rl is None else 6.5 if kind == "sft" else 15.5)
    return _svg("ratio", Markup("").join(parts))


def _dot(kind: str, found: Ratio, y: float) -> list[Markup]:
    side = "same" if not found.sure else "over" if found.ratio > 1 else "under"
    out = []
    if found.low is not None and found.high is not None:
        a, b = _x(found.low), _x(found.high)
        out.append(Markup('<path class="bar {s}" d="M{a:.1f} {y:.1f}H{b:.1f}"/>').format(s=side, a=a, b=b, y=y))
    x = _x(found.ratio)
    if 1 / SPAN <= found.ratio <= SPAN:
        shape = Markup('<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6"/>').format(x=x, y=y)
    else:
        shape = Markup('<path d="M{x:.1f} {a:.1f}L{t:.1f} {y:.1f}L{x:.1f} {b:.1f}Z"/>').format(
            x=x, t=x - 6 if found.ratio < 1 else x + 6, y=y, a=y - 4, b=y + 4
        )
    out.append(Markup('<g class="dot {k} {s}">{shape}</g>').format(k=kind, s=side, shape=shape))
    return out


def _x(ratio: float) -> float:
    place = math.log(min(SPAN, max(1 / SPAN, ratio))) / math.log(SPAN)
    return EDGE + (WIDTH - 2 * EDGE) * (1 + place) / 2


def _svg(kind: str, body: Markup) -> Markup:
    return Markup(
        '<svg class="{k}" viewBox="0 0 {w} {h}" width="{w}" height="{h}" aria-hidden="true">{b}</svg>'
    ).format(k=kind, w=WIDTH, h=HEIGHT, b=body)


def _objects(value: object, key: str) -> Sequence[dict[str, Any]]:
    found = value.get(key) if isinstance(value, dict) else None
    return [x for x in found if isinstance(x, dict)] if isinstance(found, list) else ()
