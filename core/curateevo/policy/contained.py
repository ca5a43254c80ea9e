"""The policy's container: both runs of an untrusted policy, with no keys in reach and nothing trusted behind it.

`python -m curateevo.policy.contained --visible DIR --answers DIR` runs what `visible` holds and leaves the raw outcome
of each run in `answers`. A refusal is an outcome as well (exit 0): the trusted side judges. It needs the library alone.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from curateevo.api.errors import ExitCode, PolicyRejected, Transient
from curateevo.policy import exchange
from curateevo.policy.confine import refuse_inspection
from curateevo.policy.gate import ask_twice, read_policy
from curateevo.policy.source import check_static

MESSAGE_CHARS = 500


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0, or 75 when the sandbox could not be set up."""
    parser = argparse.ArgumentParser(prog="python -m curateevo.policy.contained", description=__doc__)
    parser.add_argument("--visible", required=True, type=Path, help="what the policy may read")
    parser.add_argument("--answers", required=True, type=Path, help="where the outcomes go")
    parser.add_argument("--termination-log", type=Path, help="where a short JSON about a failure goes")
    parser.add_argument("--again", action="store_true", help="the second pass, where the first requested rewrites")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds that the inputs may take to appear")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # unheard by a first process otherwise
    refuse_inspection()
    try:
        run_contained(options.visible, options.answers, options.wait, again=options.again)
    except Transient as error:
        print(f"policy: {error}", file=sys.stderr, flush=True)  # noqa: T201
        if options.termination_log is not None:
            said = {"stage": "curate", "exitCode": int(error.exit_code), "outcome": "Transient"}
            options.termination_log.write_text(json.dumps({**said, "message": str(error)[:MESSAGE_CHARS]}))
        return int(error.exit_code)
    return int(ExitCode.OK)


def run_contained(visible: Path, answers: Path, wait_seconds: float = 0.0, *, again: bool = False) -> None:
    """Leave an answer for each run; nothing when the work is done already, or there is no second pass. Raises
    Transient."""
    exchange.await_any([visible / exchange.DONE, visible / exchange.READY], wait_seconds)
    policy, context = visible / exchange.POLICY, visible / (exchange.CONTEXT_AGAIN if again else exchange.CONTEXT)
    if (visible / exchange.DONE).exists() or (again and not context.is_file()):
        return
    answers.mkdir(parents=True, exist_ok=True)
    number = 1
    try:
        check_static(read_policy(policy))
        runs = ask_twice(
            policy,
            visible,
            context=context if context.is_file() else None,
            settings=exchange.read_settings(visible),
            on_step=report,
        )
        for answer in runs:
            exchange.write_answer(answers, number, answer)
            number += 1
    except PolicyRejected as refused:
        exchange.write_rejection(answers, number, refused)
    (answers / exchange.ANSWERED).touch()


def report(step: str) -> None:
    """A line for the log."""
    print(json.dumps({"stage": "curate", "phase": step}), flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
