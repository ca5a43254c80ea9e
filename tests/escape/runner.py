"""Runs attacks and honest policies where it is started, and prints what came of them as JSON.

`python -m tests.escape.runner [--wall WALL] [--shared] [--keys KEY ...] [--benign ...]` needs only the library.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from curateevo.api.errors import PolicyRejected
from curateevo.policy import gate, sandbox
from curateevo.policy.confine import Limits
from curateevo.policy.gate import Curated, GateSettings, curate_with_gate
from curateevo.policy.source import check_static
from tests.escape.attacks import ATTACKS, ENDED, HARMLESS, JUDGED, REFUSED, Attack, shared
from tests.escape.benign import POLICIES
from tests.escape.world import DEV, World, world

AT_ONCE = 2
SECONDS, HANG_SECONDS, SLACK_SECONDS = 60.0, 3.0, 60.0
LIMITS = Limits(memory_bytes=256 << 20, cpu_seconds=1)
TIME_FOR_MEMORY = replace(LIMITS, cpu_seconds=4)
PROCESS_ENDS = ("memory", "timeout", "cpu", "output", "policy-exit")
ARMED = Path(__file__).with_name("armed.py")


def static_rule(source: str) -> str:
    """The rule that refuses a source before it is run; empty when none does, `crash` when the check itself fails."""
    try:
        check_static(source)
    except PolicyRejected as refused:
        return refused.rule if refused.hint else "no remedy"
    except BaseException as error:  # noqa: BLE001  a finding
        return f"crash: {type(error).__name__}"
    return ""


def run(
    there: World, folder: Path, source: str, *, hangs: bool = False, dev: bool = False, limits: Limits = LIMITS
) -> dict[str, Any]:
    """One policy, without the static rules: how it ended, and what got through."""
    path = Path(tempfile.mkdtemp(dir=folder)) / "policy.py"
    path.parent.chmod(0o755)
    path.write_bytes(there.fill(source).encode("utf-8", "surrogateescape"))
    seconds = HANG_SECONDS if hangs else SECONDS
    answers: list[sandbox.Answer] = []
    settings = GateSettings(limits, timeout_seconds=seconds)
    began = time.monotonic()
    try:
        curated = _curate(path, there, settings, answers, DEV if dev else {})
        end, rule, said, through = HARMLESS, "", "", _forged(curated, there)
    except PolicyRejected as refused:
        end, rule = _end(refused.rule), refused.rule
        said, through = str(refused), [] if refused.hint or end == REFUSED else [f"{rule} without a remedy"]
    except Exception as error:  # noqa: BLE001  a finding
        end, rule, said, through = "crash", type(error).__name__, str(error)[:300], ["the trusted side failed"]
    took = time.monotonic() - began
    for answer in answers:
        said += "\n" + answer.printed + "\n" + json.dumps(answer.body)
    through += there.leaks(said) + there.damage(path)
    if took > 2 * seconds + SLACK_SECONDS:
        through.append(f"took {took:.0f} s")
    logs = answers[0].body.get("logs") if answers else None
    tier = answers[0].tier if answers else ""
    return {"end": end, "rule": rule, "said": said[:300], "through": through, "tier": tier, "logs": logs}


def _curate(
    path: Path, there: World, settings: GateSettings, answers: list[sandbox.Answer], dev: dict[str, str]
) -> Curated:
    def noted() -> Iterable[sandbox.Answer]:
        for answer in gate.ask_twice(path, there.corpus, context=None, settings=settings):
            answers.append(answer)
            yield answer

    return gate.judge(path, there.corpus, noted(), dev_prompts=dev)


def _end(rule: str) -> str:
    return REFUSED if rule == "policy-error" else ENDED if rule in PROCESS_ENDS else JUDGED


def _forged(curated: Curated, there: World) -> list[str]:
    """Rows that do not stand in the corpus."""
    known = {m for n in range(12) for m in (f"please use value{n} now", f"ok value{n} code k{n}")} | {
        "error",
        "Done.",
        "",
        None,
    }
    texts = {m.get("content") for row in (*curated.material.sft, *curated.material.rl) for m in row["messages"]}
    json.dumps([*curated.material.lineage]).encode()
    return [f"forged text: {text!r}" for text in texts - known]


def attack_one(there: World, folder: Path, attack: Attack) -> dict[str, Any]:
    dev = attack.key == "contract: dev tasks"
    limits = TIME_FOR_MEMORY if attack.kind == "memory" else LIMITS
    return {**run(there, folder, attack.source, hangs=attack.hangs, dev=dev, limits=limits), "logs": None}


def attack_shared(there: World, folder: Path, attacks: list[Attack]) -> dict[str, dict[str, Any]]:
    """Many attacks in one process."""
    whole = run(there, folder, shared(attacks))
    ends = {number: rest for number, *rest in map(json.loads, whole["logs"] or ())}
    out = {}
    for number, attack in enumerate(attacks):
        end, told, why = ends.get(number, ("lost", [], ""))
        through = (
            whole["through"]
            + [f"it said {text}" for text in told]
            + ([] if number in ends else ["lost: " + whole["said"][-300:]])
        )
        out[attack.key] = {**whole, "end": end, "said": why, "through": through, "logs": None}
    return out


def honest_one(there: World, folder: Path, source: str, once: bool) -> dict[str, Any]:
    """An honest policy through all of the gate; or, with `once`, one run of it and the check of what it answers."""
    path = Path(tempfile.mkdtemp(dir=folder)) / "policy.py"
    path.parent.chmod(0o755)
    path.write_text(source)
    settings = GateSettings(Limits(memory_bytes=512 << 20, cpu_seconds=20), timeout_seconds=60.0)
    try:
        if once:
            done = sandbox.run_policy(path, there.corpus, limits=settings.limits, timeout_seconds=60.0)
        else:
            done = curate_with_gate(path, there.corpus, dev_prompts={}, settings=settings).run
    except Exception as error:  # noqa: BLE001  a finding
        return {"end": "refused", "said": f"{type(error).__name__}: {error}", "tier": ""}
    return {"end": "passed", "said": "", "tier": done.tier}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wall", choices=("whole", "without-landlock", "unconfined"), default="whole")
    parser.add_argument("--shared", action="store_true", help="attacks that only raise: all in one process")
    parser.add_argument("--everywhere", action="store_true", help="only what a tier matters for")
    parser.add_argument("--keys", nargs="*", help="only these")
    parser.add_argument("--benign", nargs="*", help="also these honest policies; all when none is named")
    options = parser.parse_args()
    sandbox.CHILD = ("-I", str(ARMED), *([] if options.wall == "whole" else [f"--{options.wall}"]))
    wanted = [
        a
        for a in ATTACKS
        if (a.everywhere or not options.everywhere) and (options.keys is None or a.key in options.keys)
    ]
    honest = [] if options.benign is None else options.benign or list(POLICIES)
    told: dict[str, Any] = {"attacks": {}, "benign": {}}
    lock = threading.Lock()

    def keep(where: str, name: str, work: Callable[[], dict[str, Any]]) -> None:
        began = time.monotonic()
        found = work()
        with lock:
            told[where][name] = {**found, "seconds": round(time.monotonic() - began, 2)}

    checked, gate.check_static = gate.check_static, lambda source: None
    with world() as there, tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(AT_ONCE) as pool:
        folder = Path(name)
        folder.chmod(0o755)
        together = [a for a in wanted if options.shared and a.can_share]
        jobs = [
            pool.submit(keep, "attacks", a.key, lambda a=a: attack_one(there, folder, a))
            for a in wanted
            if a not in together
        ]
        for job in jobs:
            job.result()
        if together:
            told["attacks"] |= attack_shared(there, folder, together)
        gate.check_static = checked
        for job in [
            pool.submit(keep, "benign", n, lambda n=n: honest_one(there, folder, POLICIES[n], options.everywhere))
            for n in honest
        ]:
            job.result()
    json.dump(told, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
