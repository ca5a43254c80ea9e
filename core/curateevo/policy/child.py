"""The sandboxed process: loads the corpus, confines itself for good, and only then runs the policy.

Started by `sandbox.py` as `python -I -m curateevo.policy.child REQUEST_JSON`. Reading Parquet starts threads, for
which a wall would not hold: the policy runs in a fork, which has none of them, and the process that has read becomes
one that waits (`WAIT`). To an inherited pipe the fork writes a line with the tier once it is confined, and then the
answer: what goes wrong after that line is the policy's doing.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from curateevo.policy import api, confine, recipe
from curateevo.policy.operators.items import Context, Corpus, Items, Resources
from curateevo.policy.source import ALLOWED_MODULES
from curateevo.trajectories.columns import Columns, Texts
from curateevo.trajectories.corpus import read_features, read_rows

POLICY_FILE = "<policy>"
WAIT = """
import os, resource, signal, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
status = os.waitpid(int(sys.argv[1]), 0)[1]
if os.WIFSIGNALED(status):
    if os.WTERMSIG(status) != signal.SIGKILL:
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
    os.kill(os.getpid(), os.WTERMSIG(status))
os._exit(os.waitstatus_to_exitcode(status))
"""
"""Ends as its child ends. A program of its own, so that the corpus is in memory once."""

GC_THRESHOLDS = (50_000, 20, 100)
"""A policy makes many items, which hold no cycles: looking for some as often as Python does takes half of its time."""


def main() -> int:
    request = json.loads(sys.argv[1])
    out = os.fdopen(request["answer_fd"], "wb")
    corpus = load_corpus(Path(request["corpus"]))
    source = Path(request["policy"]).read_text(encoding="utf-8", errors="surrogateescape")  # compile() refuses those
    facts = json.loads(Path(request["context"]).read_text(encoding="utf-8")) if request["context"] else {}
    for name in sorted(ALLOWED_MODULES):
        importlib.import_module(name)
    sys.stdout.flush()
    if child := os.fork():
        out.close()
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", WAIT, str(child)], {})
    gc.set_threshold(*GC_THRESHOLDS)
    tier = confine.confine_self(confine.Limits(**request["limits"]), Path(request["scratch"]), out.fileno())
    out.write(f"{tier}\n".encode())
    out.flush()
    out.write(json.dumps(run(source, corpus, facts, request["seed"])).encode())
    out.close()
    sys.stdout.flush()
    os._exit(0)


def load_corpus(folder: Path) -> Corpus:
    """The corpus, all of it in memory: after confinement no file can be read."""
    texts = Texts(read_rows(folder))
    return Corpus(Columns(read_features(folder)), lambda rows: {row: texts[row] for row in rows})


def run(source: str, corpus: Corpus, facts: dict[str, Any], seed: int) -> dict[str, Any]:
    """Run a policy. The answer holds `resources`, or `rejected` with rule, message and line."""
    try:
        module = _load(source)
        ctx = Context(
            params=dict(module.PARAMS),
            rng=random.Random(seed),
            profile=facts.get("profile", {}),
            failures=tuple(facts.get("failures", ())),
            family_success=facts.get("family_success", {}),
            tools=tuple(facts.get("tools", ())),
            rewritten=recipe.parse_answers(facts.get("rewritten", ())),
        )
        resources = curate(module, corpus, ctx)
        return {**recipe.encode(resources, ctx.requests), "logs": ctx.logs, "metrics": ctx.metrics}
    except MemoryError:
        return {"rejected": {"rule": "memory", "message": "the policy used more memory than it may", "line": None}}
    except BaseException as error:  # noqa: BLE001  the sandbox's edge: whatever the policy raises is a result
        line = next(
            (f.lineno for f in reversed(traceback.extract_tb(error.__traceback__)) if f.filename == POLICY_FILE),
            None,
        )
        message = f"{type(error).__name__}: {str(error)[:800]}"
        return {"rejected": {"rule": "policy-error", "message": message, "line": line}}


def curate(policy: Any, corpus: Corpus, ctx: Context) -> Resources:
    """The wiring of a policy's stages: what may not be evolved."""
    items = _items(policy.select(corpus, ctx), "select")
    items = _items(policy.refine(items, ctx), "refine")
    items = _items(policy.augment(items, ctx), "augment")
    sft = _items(policy.build_sft(items, ctx), "build_sft")
    resources = Resources(sft, tuple(policy.build_rl(items, ctx)), tuple(policy.build_memory(items, ctx)))
    pruned = policy.prune(resources, ctx)
    if not isinstance(pruned, Resources):
        raise TypeError(f"prune returned {type(pruned).__name__}, not Resources")
    return Resources(_items(pruned.sft, "prune"), tuple(pruned.rl), tuple(pruned.memory))


def _items(value: Any, stage: str) -> Items:
    if not isinstance(value, Items):
        raise TypeError(f"{stage} returned {type(value).__name__}, not Items")
    return value


def _load(source: str) -> ModuleType:
    module = sys.modules["policy"] = ModuleType("policy")  # dataclasses look their module up
    module.__dict__["api"] = api
    exec(compile(source, POLICY_FILE, "exec", dont_inherit=True), module.__dict__)
    return module


if __name__ == "__main__":
    sys.exit(main())
