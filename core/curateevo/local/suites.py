"""`curateevo evaluate`: a served model on a suite, by the program `curateevo_jobs.suite_run`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.table import Table

from curateevo.api.errors import ContractBroken, CurateEvoError, Denied, Transient
from curateevo.policy.confine import die_with_parent

SCORES = "scores.json"
INTERRUPTED = 130
ERRORS: dict[int, type[CurateEvoError]] = {kind.exit_code: kind for kind in (ContractBroken, Transient, Denied)}


def evaluate_served(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run, or go on with, a suite; its scores. Raises what the program ended with. Progress goes to standard error."""
    with tempfile.TemporaryDirectory(prefix="curateevo-") as name:
        path = Path(name) / "request.json"
        path.write_text(json.dumps({**request, "output": str(folder.absolute())}), encoding="utf-8")
        command = [sys.executable, "-m", "curateevo_jobs.suite_run", str(path)]
        # A bar needs the terminal itself; elsewhere progress is lines on its standard output, and errors are its last.
        stderr = None if sys.stderr.isatty() else subprocess.PIPE
        done = subprocess.run(
            command, stdout=sys.stderr, stderr=stderr, text=True, check=False, preexec_fn=die_with_parent
        )
    if done.returncode == INTERRUPTED:
        raise KeyboardInterrupt
    if done.returncode in ERRORS:
        raise ERRORS[done.returncode]((done.stderr or "the evaluation ended; its error stands above").strip())
    if done.returncode != 0:
        raise CurateEvoError((done.stderr or "the evaluation's program failed; its error stands above").strip()[-2000:])
    scores: dict[str, Any] = json.loads((folder / SCORES).read_text(encoding="utf-8"))
    return scores


def scores_table(scores: dict[str, Any]) -> Table:
    """Success by family, with its standard error and what doing nothing scores; the mean reward."""
    table = Table(title=f"{scores['model']} on {scores['suite']['name']}", title_justify="left")
    for column in ("family", "tasks", "measured", "success", "std. error", "doing nothing", "reward"):
        table.add_column(column, justify="left" if column == "family" else "right")
    for name, row in (*scores["families"].items(), ("all", scores["all"])):
        shares = (_share(row[key]) for key in ("success", "standard_error", "nothing", "reward"))
        table.add_row(name, str(row["tasks"]), str(row["measured"]), *shares)
    return table


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
