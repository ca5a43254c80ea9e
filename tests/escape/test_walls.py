"""No attack gets through, at any tier; honest policies pass at each; and docs/sandbox.md says what is so."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import sandlock

from curateevo.api.errors import PolicyRejected
from curateevo.policy.source import check_static, policy_digest
from tests.escape import table, tiers
from tests.escape.attacks import ATTACKS, BASE, PLACE, REFUSED, TELL
from tests.escape.benign import POLICIES
from tests.escape.runner import ARMED
from tests.escape.verdict import ATTACK, check
from tests.escape.world import write_corpus

QUICK = [a.key for a in ATTACKS if a.can_share] + [
    "kernel: 32-bit calls", "libraries: polars reads", "memory: byte arrays", "time: sleep with all pipes closed",
    "time: a loop that ignores the signal", "answer: a row out of range", "contract: os._exit",
]  # fmt: skip
QUICK_HONEST = ["all at once", "scores in a class"]
root = pytest.mark.skipif(os.getuid() != 0, reason="needs root")
LOCAL = [pytest.param(t, marks=[root] if t == tiers.NOBODY else []) for t in tiers.LOCAL]
MISTAKES = ("NameError", "AttributeError", "ImportError", "ModuleNotFoundError", "TypeError", "KeyError", "SyntaxError")
"""What an attack fails with that is wrong itself, or lacks something: it would prove nothing."""
HELD_ANYWAY = {
    "imports: the grader",  # is not below what a stranger may read
    "files: chown", "network: raw packets", "network: kernel crypto", "network: DNS",  # not for users, not everywhere
    "network: HTTP",  # seen by the server alone
}  # fmt: skip


@functools.cache
def told(tier: str) -> dict[str, Any]:
    return tiers.run(tier, *tiers.whole(tier))


def mistaken(found: dict[str, Any]) -> dict[str, str]:
    said = {key: o["said"] for key, o in found["attacks"].items() if ATTACK[key].can_share}
    return {key: text for key, text in said.items() if text.startswith(MISTAKES) and key not in HELD_ANYWAY}


# ---- in the default check


def test_the_corpus_is_large_enough() -> None:
    assert len(ATTACK) == len(ATTACKS) >= 60
    assert len(POLICIES) >= 20


def test_most_attacks_hold_at_this_machines_tier() -> None:
    tier = tiers.NOBODY if os.getuid() == 0 else tiers.USER
    found = tiers.run(tier, "--shared", "--keys", *QUICK, "--benign", *QUICK_HONEST)
    assert found["attacks"].keys() == set(QUICK) and found["benign"].keys() == set(QUICK_HONEST)
    check(found, tier)
    assert not mistaken(found)


def test_the_static_rules_neither_break_nor_change_unseen() -> None:
    found = table.static_column()
    assert not {key: rule for key, rule in found.items() if rule.startswith("crash") or rule == "no remedy"}
    assert found == {key: cells[table.STATIC] for key, cells in table.read(table.ATTACK_TABLE).items()}


@pytest.mark.parametrize("key", [a.key for a in ATTACKS if a.kind == "source"])
def test_a_policys_id_is_made_or_refused(key: str) -> None:
    try:
        assert policy_digest(ATTACK[key].source).startswith("sha256:")
    except PolicyRejected as refused:
        assert refused.hint


def test_what_attacks_tell_with_passes_the_static_rules() -> None:
    check_static(BASE + TELL)


def test_half_a_character_is_a_syntax_error() -> None:
    with pytest.raises(PolicyRejected, match="^syntax"):
        check_static(BASE + "x = '\ud800'\n")


@pytest.mark.parametrize("name", POLICIES)
def test_the_static_rules_let_honest_policies_pass(name: str) -> None:
    check_static(POLICIES[name])


def test_every_system_call_that_is_not_listed_is_refused() -> None:
    assert tiers.calls() == []


@root
def test_each_layer_stops_what_the_page_says_it_stops() -> None:
    found = tiers.layers()
    written = table.read(table.LAYER_TABLE)
    assert written.keys() == found["none"].keys()
    tried = [layer for layer in found if layer != "Landlock" or sandlock.landlock_abi_version() >= 6]
    assert {p: {layer: found[layer][p] for layer in tried} for p in written} == {
        p: {layer: written[p][layer] for layer in tried} for p in written
    }


def test_a_process_with_threads_is_not_confined() -> None:
    code = (
        "import threading, pathlib, tempfile\n"
        "from curateevo.policy import confine\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "try: confine.confine_self(confine.Limits(), pathlib.Path(tempfile.gettempdir()), 2)\n"
        "except OSError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "threads: the wall would not hold" in done.stdout, done.stderr


def test_the_table_has_every_attack() -> None:
    written = table.read(table.ATTACK_TABLE)
    assert list(written) == [a.key for a in ATTACKS]
    for key, cells in written.items():
        assert table.THROUGH not in cells.values(), key
        assert {cells[t] for t in tiers.TIERS} - {table.NOT_RUN}, key


@pytest.mark.parametrize("wall", ["whole", "without-landlock"])
def test_a_policys_process_ends_with_the_one_that_watches_it(wall: str, tmp_path: Path) -> None:
    """The watcher is killed; so must be the process that waits, and the policy."""
    write_corpus(tmp_path / "corpus", "{}")
    policy = tmp_path / "policy.py"
    policy.write_text(BASE.replace(PLACE, "    import time\n    print('runs', flush=True)\n    time.sleep(300)\n"))
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    child = ["-I", str(ARMED), *([] if wall == "whole" else [f"--{wall}"])]
    code = textwrap.dedent(f"""
        from pathlib import Path
        from curateevo.policy import sandbox
        sandbox.CHILD = {child!r}
        read = sandbox.os.read
        def told(fd, size):
            data = read(fd, size)
            print(data.decode(), flush=True)
            return data
        sandbox.os.read = told
        sandbox.run_policy(Path({str(policy)!r}), Path({str(tmp_path / "corpus")!r}))
    """)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        assert any("runs" in line for line in watcher.stdout)
        mine = _with(str(policy))
        assert mine
        watcher.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 20
        while _with(str(policy)) and time.monotonic() < deadline:
            time.sleep(0.05)
        left = _with(str(policy))
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert not left


def _with(text: str) -> list[int]:
    """Processes of the sandbox that were started with this text."""
    out = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if text.encode() in command and b"armed.py\0" in command:
            out.append(int(path.parent.name))
    return out


# ---- all of it


@pytest.mark.slow
@pytest.mark.parametrize("tier", LOCAL)
def test_nothing_gets_through(tier: str) -> None:
    check(told(tier), tier)


@pytest.mark.slow
@pytest.mark.parametrize("tier", LOCAL)
def test_the_page_says_what_is_so(tier: str) -> None:
    written = {key: cells[tier] for key, cells in table.read(table.ATTACK_TABLE).items()}
    assert table.column(told(tier)) == written


@pytest.mark.slow
def test_attacks_work_where_there_is_no_wall() -> None:
    """As a user who is not confined: else they would prove nothing."""
    alone = {"imports: execv", "imports: multiprocessing", "imports: forkpty", "files: a deep folder"}
    kinds = ("imports", "introspection", "files", "network", "libraries")
    tried = [a.key for a in ATTACKS if a.can_share and a.kind in kinds and a.key not in alone]
    found = tiers.run(tiers.USER, "--wall", "unconfined", "--shared", "--keys", *tried)["attacks"]
    assert found.keys() == set(tried)
    own = {key: [t for t in o["through"] if t.startswith("it said")] or o["end"] != REFUSED for key, o in found.items()}
    assert {key for key, works in own.items() if not works} <= HELD_ANYWAY
    seen = {text for o in found.values() for text in o["through"]}
    for kind in ("TCP", "UDP", "unix", "abstract unix"):
        assert f"connected: {kind}" in seen
