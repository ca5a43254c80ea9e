"""What a person sees of versions while a run goes on."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from curateevo.local.display import versions_table
from tests.core.report import runs


def shown(folder: runs.RunFolder) -> str:
    console = Console(width=160, no_color=True)
    with console.capture() as capture:
        console.print(versions_table(folder.evolution(), folder.versions()))
    return capture.get()


def test_a_version_that_ended_early_shows_what_p_could_at_most_be(tmp_path: Path) -> None:
    text = shown(runs.stopped_early(tmp_path))
    assert "≤ 0.679" in text and "0.123" not in text and "0.750" in text
