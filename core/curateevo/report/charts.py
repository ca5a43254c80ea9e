"""Charts as inline SVG: pure functions from numbers to markup. Colours come from the page's style sheet by class."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from markupsafe import Markup

from curateevo.report.wording import number

WIDTH, LEFT, RIGHT = 800, 52, 148
TOP, GAP, AXIS = 26, 40, 46
P_HEIGHT, SMALL_HEIGHT = 220, 84
LABEL_SPACE = 16
MAX_LABELS = 26
MIN_STEP = 20
"""Between versions: with more of them the chart becomes wider, and scrolls."""
DESCRIBED = 60
"""Versions that the chart's description names; all of them stand in the table."""


class Mark(StrEnum):
    """What became of a version. Each has a shape of its own, so that colour is never needed."""

    COMMITTED = "Committed"
    REVERTED = "Reverted"
    REJECTED = "Rejected"
    FAILED = "Failed"
    RUNNING = "In progress"
    SKIPPED = "No candidate"


@dataclass(frozen=True, slots=True)
class Point:
    """One version. None where it was not measured."""

    number: int
    mark: Mark
    p: float | None
    low: float | None
    high: float | None
    c: float | None
    j: float | None


@dataclass(frozen=True, slots=True)
class _Panel:
    """A plot area with its scale. `top` and `height` in the chart's units, `low` to `high` in the data's."""

    name: str
    top: float
    height: float
    low: float
    high: float

    def y(self, value: float) -> float:
        return self.top + self.height * (1 - (value - self.low) / (self.high - self.low))


def css_class(mark: Mark) -> str:
    return mark.value.lower().replace(" ", "-")


def marker(mark: Mark, x: float, y: float, r: float = 6.0) -> Markup:
    """The mark's shape around a point."""
    match mark:
        case Mark.COMMITTED:
            shape = Markup('<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}"/>').format(x=x, y=y, r=r)
        case Mark.REVERTED:
            shape = _polygon((x, y - r * 1.15), (x + r * 1.15, y), (x, y + r * 1.15), (x - r * 1.15, y))
        case Mark.REJECTED:
            shape = Markup('<path d="M{a:.1f} {b:.1f}L{c:.1f} {d:.1f}M{a:.1f} {d:.1f}L{c:.1f} {b:.1f}"/>').format(
                a=x - r * 0.8, b=y - r * 0.8, c=x + r * 0.8, d=y + r * 0.8
            )
        case Mark.FAILED:
            shape = _polygon((x, y - r), (x + r * 1.05, y + r * 0.8), (x - r * 1.05, y + r * 0.8))
        case Mark.RUNNING:
            shape = Markup('<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}" stroke-dasharray="3 2.5"/>').format(
                x=x, y=y, r=r
            )
        case Mark.SKIPPED:
            shape = Markup('<path d="M{a:.1f} {y:.1f}H{b:.1f}"/>').format(a=x - r, b=x + r, y=y)
        case _:
            assert_never(mark)
    return Markup('<g class="mark {c}">{shape}</g>').format(c=css_class(mark), shape=shape)


def icon(mark: Mark) -> Markup:
    """The mark for a line of text; its word stands beside it."""
    body = marker(mark, 8, 8, 5.5)
    return Markup('<svg class="icon" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">{}</svg>').format(
        body
    )


def change_bar(before: float | None, after: float | None) -> Markup:
    """Two shares on a line from 0 to 1: a ring before, a disc after. Decoration: the numbers stand beside it."""
    parts = [Markup('<path class="rail" d="M6 8H114"/>')]
    at = [None if v is None or not math.isfinite(v) else 6 + 108 * min(1.0, max(0.0, v)) for v in (before, after)]
    if at[0] is not None and at[1] is not None:
        kind = "up" if at[1] > at[0] else "down"
        parts.append(Markup('<path class="span {k}" d="M{a:.1f} 8H{b:.1f}"/>').format(k=kind, a=at[0], b=at[1]))
    if at[0] is not None:
        parts.append(Markup('<circle class="before" cx="{:.1f}" cy="8" r="4"/>').format(at[0]))
    if at[1] is not None:
        parts.append(Markup('<circle class="after" cx="{:.1f}" cy="8" r="4.5"/>').format(at[1]))
    body = Markup("").join(parts)
    return Markup(
        '<svg class="change" viewBox="0 0 120 16" width="120" height="16" aria-hidden="true">{}</svg>'
    ).format(body)


def history_chart(points: Sequence[Point], floors: Sequence[tuple[str, float]]) -> Markup:
    """P with intervals, C and J by version, over one axis. `floors`: name and P, drawn as reference lines."""
    measured = [p for p in points if _finite(p.p) is not None]
    if not measured:
        return Markup("")
    width = max(WIDTH, LEFT + RIGHT + MIN_STEP * len(points))
    x = _x_of(points, width)
    tops = (TOP, TOP + P_HEIGHT + GAP, TOP + P_HEIGHT + SMALL_HEIGHT + 2 * GAP)
    known = [v for p in measured for v in (p.p, p.high) if _finite(v) is not None] + [v for _, v in floors]
    highest = min(1.0, max(0.05, *(v for v in known if v is not None)) * 1.08)
    main = _Panel("P: success on sel, 0 to 1 (higher is better)", tops[0], P_HEIGHT, 0.0, highest)
    cost = _zoomed("C: cost, 0 to 1 (lower is better)", tops[1], [p.c for p in measured])
    gain = _zoomed("J = P − λ·C (higher is better)", tops[2], [p.j for p in measured])
    bottom = tops[2] + SMALL_HEIGHT
    parts = [_frame(panel, width) for panel in (main, cost, gain)]
    parts += _references(main, measured, floors, x, width)
    parts += [_interval(main, p, x(p.number)) for p in measured]
    parts += _series(main, measured, x, lambda p: p.p, 6.5)
    parts += _series(cost, measured, x, lambda p: p.c, 4.5)
    parts += _series(gain, measured, x, lambda p: p.j, 4.5)
    parts += _axis(points, x, bottom)
    height = bottom + AXIS
    return Markup(
        '<svg class="chart" viewBox="0 0 {w} {h}" style="min-width:{least}px;max-width:{most}px" role="img" '
        'aria-labelledby="chart-title chart-desc"><title id="chart-title">'
        "Success, cost and objective by version</title>"
        '<desc id="chart-desc">{desc}</desc>{body}</svg>'
    ).format(
        w=width,
        h=height,
        least=round(width * 0.8),
        most=round(width * 1.4),
        desc=_told(points, floors),
        body=Markup("").join(parts),
    )


def _x_of(points: Sequence[Point], width: float) -> Callable[[int], float]:
    places = {p.number: i for i, p in enumerate(points)}
    step = (width - LEFT - RIGHT) / len(points)
    return lambda version: LEFT + step * (places[version] + 0.5)


def _zoomed(name: str, top: float, values: Sequence[float | None]) -> _Panel:
    """A scale about the values: C and J differ little, so that one from 0 would show a straight line."""
    known = [v for v in values if _finite(v) is not None and v is not None] or [0.0]
    low, high = min(known), max(known)
    pad = max(0.005, (high - low) * 0.25)
    return _Panel(name, top, SMALL_HEIGHT, low - pad, high + pad)


def _frame(panel: _Panel, width: float) -> Markup:
    right = width - RIGHT
    parts = [
        Markup('<text class="panel" x="{x}" y="{y:.1f}">{n}</text>').format(x=LEFT, y=panel.top - 10, n=panel.name)
    ]
    for tick in ticks(panel.low, panel.high, 4 if panel.height > SMALL_HEIGHT else 3):
        y = panel.y(tick)
        parts.append(Markup('<path class="grid" d="M{a} {y:.1f}H{b}"/>').format(a=LEFT, b=right, y=y))
        parts.append(
            Markup('<text class="tick" x="{x}" y="{y:.1f}">{t}</text>').format(x=LEFT - 8, y=y + 4, t=_tick(tick))
        )
    return Markup("").join(parts)


def ticks(low: float, high: float, wanted: int) -> list[float]:
    """Round numbers between `low` and `high`, about `wanted` of them."""
    power = 10.0 ** math.ceil(math.log10(high - low))
    steps = (m * power / 10**k for k in range(4) for m in (1, 0.5, 0.25, 0.2))
    step = next(s for s in steps if (high - low) / s >= wanted - 0.5)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, first + 8 * wanted) if k * step <= high + step * 1e-9]


def _tick(value: float) -> str:
    return number(value, 4).rstrip("0").rstrip(".") if abs(value) > 1e-12 else "0"


def _references(
    panel: _Panel,
    measured: Sequence[Point],
    floors: Sequence[tuple[str, float]],
    x: Callable[[int], float],
    width: float,
) -> list[Markup]:
    """The champion's line in steps and the floors, with their names at the right, apart from each other."""
    right = width - RIGHT
    labels = [(panel.y(value), f"{name} {number(value)}", "floor-label") for name, value in floors]
    parts = [
        Markup('<path class="floor" d="M{a} {y:.1f}H{b}"/>').format(a=LEFT, b=right, y=panel.y(value))
        for _, value in floors
    ]
    champions = [(x(p.number), p.p) for p in measured if p.mark is Mark.COMMITTED and p.p is not None]
    if champions:
        path = f"M{champions[0][0]:.1f} {panel.y(champions[0][1]):.1f}"
        path += "".join(f"H{at:.1f}V{panel.y(value):.1f}" for at, value in champions[1:]) + f"H{right}"
        parts.append(Markup('<path class="champion" d="{}"/>').format(path))
        labels.append((panel.y(champions[-1][1]), f"champion {number(champions[-1][1])}", "champion-label"))
    ceiling = panel.top + panel.height + 4
    for (_, text, kind), y in zip(*_spread(sorted(labels), ceiling), strict=True):
        parts.append(
            Markup('<text class="{k}" x="{x}" y="{y:.1f}">{t}</text>').format(k=kind, x=right + 8, y=y + 4, t=text)
        )
    return parts


def _spread(labels: list[tuple[float, str, str]], lowest: float) -> tuple[list[tuple[float, str, str]], list[float]]:
    """Heights at which labels do not cover each other, none below `lowest`."""
    places = [y for y, _, _ in labels]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + LABEL_SPACE)
    for i in range(len(places) - 1, -1, -1):
        places[i] = min(places[i], lowest if i == len(places) - 1 else places[i + 1] - LABEL_SPACE)
    return labels, places


def _interval(panel: _Panel, point: Point, x: float) -> Markup:
    if _finite(point.low) is None or _finite(point.high) is None or point.low is None or point.high is None:
        return Markup("")
    a, b = panel.y(min(point.high, panel.high)), panel.y(max(point.low, panel.low))
    path = f"M{x:.1f} {a:.1f}V{b:.1f}M{x - 4:.1f} {a:.1f}H{x + 4:.1f}M{x - 4:.1f} {b:.1f}H{x + 4:.1f}"
    return Markup('<path class="interval {c}" d="{d}"/>').format(c=css_class(point.mark), d=path)


def _series(
    panel: _Panel,
    points: Sequence[Point],
    x: Callable[[int], float],
    value: Callable[[Point], float | None],
    r: float,
) -> list[Markup]:
    out = []
    for point in points:
        v = _finite(value(point))
        if v is not None:
            out.append(marker(point.mark, x(point.number), panel.y(v), r))
    return out


def _axis(points: Sequence[Point], x: Callable[[int], float], bottom: float) -> list[Markup]:
    """Every version's mark and number; those that were not measured appear here alone."""
    every = math.ceil(len(points) / MAX_LABELS)
    parts = []
    for place, point in enumerate(points):
        parts.append(marker(point.mark, x(point.number), bottom + 17, 4.5))
        if place % every == 0:
            label = Markup('<text class="version" x="{x:.1f}" y="{y:.1f}">v{n}</text>')
            parts.append(label.format(x=x(point.number), y=bottom + 39, n=point.number))
    return parts


def _told(points: Sequence[Point], floors: Sequence[tuple[str, float]]) -> str:
    said = [
        f"version {p.number} {p.mark.value}, P {number(p.p)}, C {number(p.c)}, J {number(p.j)}"
        for p in points[:DESCRIBED]
    ]
    if len(points) > DESCRIBED:
        said.append(f"and {len(points) - DESCRIBED} more, in the table")
    said += [f"floor {name} P {number(value)}" for name, value in floors]
    return "; ".join(said) + "."


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _polygon(*corners: tuple[float, float]) -> Markup:
    return Markup('<polygon points="{}"/>').format(" ".join(f"{x:.1f},{y:.1f}" for x, y in corners))
