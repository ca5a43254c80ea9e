"""The page."""

from __future__ import annotations

from pathlib import Path

from curateevo.local.objects import RunFolder
from curateevo.report.story import read_story


def write_report(folder: RunFolder, target: Path) -> Path:
    """Write the page about a run to `target`."""
    story = read_story(folder)
    target.write_text(f"<!doctype html><title>{story.evolution.metadata.name}</title>", encoding="utf-8")
    return target
