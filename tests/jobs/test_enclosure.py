"""Throw-away processes for a benchmark's code: what they answer, and that nothing gets out of them.

BFCL's checker is the code: it evaluates what it is given as Python. The suite never gives it more than names and
literals; here it is given the worst, as if the suite had failed to.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from curateevo.api.errors import ContractBroken, Transient
from curateevo.policy.confine import Limits
from curateevo_jobs.benchmarks.bfcl.worlds import INSIDE
from curateevo_jobs.benchmarks.enclosure import Enclosure, Stopped

GOLD = "ls(a=True)"
ENTRY = {
    "id": "multi_turn_base_0",
    "involved_classes": ["GorillaFileSystem"],
    "initial_config": {"GorillaFileSystem": {"root": {"home": {"type": "directory", "contents": {}}}}},
}
ATTACKS = {
    "writes a file": "__import__('builtins').open('{scratch}/owned', 'w').write('x')",
    "writes by a descriptor": "getattr(__import__('os'), 'open')('{scratch}/owned', 65)",
    "reads a file": "__import__('builtins').open('/etc/passwd').read()",
    "starts a program": "getattr(__import__('os'), 'system')('touch {scratch}/owned')",
    "forks": "getattr(__import__('os'), 'fork')()",
    "opens a socket": "__import__('socket').socket()",
    "exits": "getattr(__import__('os'), '_exit')(0)",
    "raises SystemExit": "(_ for _ in ()).throw(SystemExit(0))",
    "loops": "[0 for _ in iter(int, 1)]",
    "sleeps": "__import__('time').sleep(1000)",
    "allocates": "bytearray(1 << 40)",
    "kills its parent": "getattr(__import__('os'), 'ki' + 'll')(getattr(__import__('os'), 'getppid')(), 9)",
}


def job(text: str) -> dict[str, Any]:
    turns = [[[text]]]
    return {"do": "turns", "turns": turns, "truth": [[GOLD]], "entry": ENTRY, "category": "multi_turn_base"}


@pytest.fixture(scope="module")
def enclosure() -> Iterator[Enclosure]:
    limits = Limits(memory_bytes=256 << 20, cpu_seconds=1, file_bytes=0, open_files=16)
    opened = Enclosure(INSIDE, limits, job_seconds=4.0)
    yield opened
    opened.close()


def test_the_reference_is_right_under_every_layer_of_the_wall(enclosure: Enclosure) -> None:
    assert enclosure.ask(job(GOLD)) == {"right": 1}
    assert {"rlimits", "seccomp"} <= set(enclosure.tier.split("+"))


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_what_a_text_would_do_as_code_is_contained_and_wrong(attack: str, enclosure: Enclosure, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    try:
        right = enclosure.ask(job(attack.format(scratch=tmp_path)))["right"]
    except Stopped:
        right = 0
    assert not right
    assert not (tmp_path / "owned").exists()
    assert enclosure.ask(job(GOLD))["right"], "the next job is not touched"


def test_a_job_leaves_nothing_to_the_next(enclosure: Enclosure) -> None:
    poison = "__import__('sys').modules.clear()"
    with pytest.raises(Stopped):
        enclosure.ask(job(poison))
    assert not enclosure.ask(job("ls(a=False, b=1)"))["right"]
    assert enclosure.ask(job(GOLD))["right"]


def test_threads_ask_at_once_and_each_has_its_own_answer(enclosure: Enclosure) -> None:
    texts = [GOLD, "pwd()"] * 12
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda text: enclosure.ask(job(text))["right"], texts))
    assert answers == [int(text == GOLD) for text in texts]


def test_no_process_is_left_when_it_is_closed() -> None:
    opened = Enclosure(INSIDE)
    assert opened.ask(job(GOLD))["right"]
    host = opened._host
    assert host is not None
    children = Path(f"/proc/{host.process.pid}/task/{host.process.pid}/children").read_text()
    assert not children, "every job's process is ended and reaped"
    opened.close()
    assert host.process.poll() == 0
    assert not Path(host.scratch).exists()


def test_a_module_that_cannot_be_imported_is_said_with_its_error() -> None:
    with pytest.raises(ContractBroken, match="No module named 'no_such_benchmark'"):
        Enclosure("no_such_benchmark").ask({})


def test_a_host_that_died_is_started_anew() -> None:
    opened = Enclosure(INSIDE)
    assert opened.ask(job(GOLD))["right"]
    assert opened._host is not None
    opened._host.process.kill()
    opened._host.process.wait()
    with pytest.raises(Transient):
        opened.ask(job(GOLD))
    assert opened.ask(job(GOLD))["right"]
    opened.close()
