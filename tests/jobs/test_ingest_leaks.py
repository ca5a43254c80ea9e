"""Ingest keeps out what contains a dev task, and says which words gave it away."""

from __future__ import annotations

from typing import Any

from curateevo.trajectories.formats.openai import parse_openai
from curateevo_jobs.benchmarks import registry
from curateevo_jobs.ingest import DevTask, keep_clean


def talk(name: str, *said: str) -> Any:
    messages = [m for text in said for m in ({"role": "user", "content": text}, {"role": "assistant", "content": "ok"})]
    return parse_openai({"id": name, "messages": messages}, f"{name}:1")


def test_a_dev_task_is_found_wherever_the_user_says_it() -> None:
    long = "please book the cheapest flight from new york to seattle on may twentieth for two people"
    dev = [DevTask("dev/1", "book", "dev/1", long)]
    clean, late = talk("a", "hello"), talk("b", "hello", f"and now {long}")
    kept, leaked = keep_clean([clean, late], dev, frozenset())
    assert kept == [clean]
    assert leaked[0].reason == (f"b: it shares 13 words in a row with dev task dev/1: {' '.join(long.split()[:13])!r}")


def test_tasks_of_a_real_suite_are_found_by_their_prompts() -> None:
    tasks = registry.suite("toolworld").tasks({})[:20]
    prompts = {t.id: "\n".join(str(m["content"]) for m in t.messages if m["role"] == "user") for t in tasks}
    dev = [DevTask(t.id, t.family, t.id, prompts[t.id]) for t in tasks]
    kept, leaked = keep_clean([talk(f"run-{n}", p) for n, p in enumerate(prompts.values())], dev, frozenset())
    assert not kept and len(leaked) == 20
    assert all("dev task" in item.reason for item in leaked)
