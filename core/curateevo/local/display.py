"""What a person sees while a run goes on: a live table of versions and the bar of the stage at work."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from curateevo.api.evolution import CurationEvolution, Measurement, PolicyVersion, Verdict
from curateevo.evolution.decision import Notice

PLAIN_INTERVAL_SECONDS = 15.0
STYLES = {
    Verdict.COMMITTED: "green",
    Verdict.REVERTED: "yellow",
    Verdict.REJECTED: "magenta",
    Verdict.FAILED: "red",
}


@dataclass(slots=True)
class Display:
    """On a terminal a live view; elsewhere plain lines, at most one of progress every few seconds."""

    console: Console
    _live: Live | None = None
    _table: Table | None = None
    _job: str = ""
    _line: dict[str, Any] = field(default_factory=dict)
    _printed: tuple[str, float] = ("", 0.0)

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=5, transient=True)
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def line(self, text: str) -> None:
        self.console.print(Text(text))

    def notice(self, notice: Notice) -> None:
        self.console.print(
            Text(f"{notice.reason}: ", style="yellow" if notice.warning else "cyan") + Text(notice.message)
        )

    def progress(self, job: str, line: dict[str, Any]) -> None:
        """A line of a job's progress; called from its reader's thread."""
        self._job, self._line = job, line
        if self._live is None:
            key = f"{job} {line.get('phase')}"
            now = time.monotonic()
            if key != self._printed[0] or now - self._printed[1] > PLAIN_INTERVAL_SECONDS:
                self._printed = (key, now)
                self.console.print(Text(f"  {job}: {_describe(line)}", style="dim"))

    def show(self, evolution: CurationEvolution, versions: dict[int, PolicyVersion]) -> None:
        self._table = versions_table(evolution, versions)
        self.refresh()

    def refresh(self) -> None:
        if self._live is None or self._table is None:
            return
        parts: list[Any] = [self._table]
        if self._job and self._line.get("total"):
            bar = Table.grid(padding=(0, 1))
            done, total = self._line["done"], self._line["total"]
            bar.add_row(
                Text(self._job, style="dim"),
                Text(str(self._line["phase"])),
                ProgressBar(total, done, width=30),
                Text(_describe(self._line)),
            )
            parts.append(bar)
        self._live.update(Group(*parts))


def _describe(line: dict[str, Any]) -> str:
    metrics = " ".join(f"{name} {value:.3g}" for name, value in (line.get("metrics") or {}).items())
    return f"{line.get('phase')} {line.get('done')}/{line.get('total') or '?'} {metrics}".rstrip()


def versions_table(evolution: CurationEvolution, versions: dict[int, PolicyVersion]) -> Table:
    """The story of a run: one row per version."""
    status = evolution.status
    champion = f"champion v{status.champion.number}" if status.champion else "no champion yet"
    message = status.message.partition("\n")[0]
    title = f"{evolution.metadata.name}: {status.phase}, {champion}, {message}"
    table = Table(title=Text(title), title_justify="left", title_style="bold")
    for column in ("NUMBER", "PARENT", "FOCUS", "P", "C", "J", "TURNS", "VERDICT", "REASON"):
        table.add_column(
            column,
            justify="right" if column in {"P", "C", "J", "TURNS", "NUMBER"} else "left",
            no_wrap=column != "REASON",
        )
    for number in sorted(versions):
        table.add_row(*_cells(versions[number]))
    return table


def _measured(m: Measurement | None) -> tuple[str, str, str, str]:
    """P, C, J and turns; P as what it could at most be where not all was run."""
    if m is None:
        return "", "", "", ""
    if m.p is not None and m.j is not None:
        p, j = f"{m.p:.3f}", f"{m.j:.3f}"
    else:
        p, j = f"≤ {m.stopped.p_at_most:.3f}" if m.stopped and m.stopped.episodes else "", ""
    return p, f"{m.c:.3f}", j, str(m.sft_turns + m.rl_turns)


def _cells(version: PolicyVersion) -> tuple[str | Text, ...]:
    status, spec = version.status, version.spec
    m = status.measurement
    verdict: str | Text = status.phase.value
    if status.verdict is not None:
        verdict = Text(status.verdict.value, style=STYLES[status.verdict])
    return (
        str(spec.number),
        "-" if spec.parent is None else str(spec.parent),
        spec.focus.value if spec.focus else "-",
        *_measured(m),
        verdict,
        status.reason.value if status.reason else "",
    )
