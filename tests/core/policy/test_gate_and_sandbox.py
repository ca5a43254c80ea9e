"""The contract gate's rules, and the wall: what a hostile policy tries ends as a refusal with its reason."""

from __future__ import annotations

import os
import re
import socket
import threading
from pathlib import Path

import pytest

from curateevo.api.errors import PolicyRejected
from curateevo.policy.builtin import NAMES, source_of
from curateevo.policy.confine import Limits
from curateevo.policy.gate import GateSettings, curate_with_gate
from curateevo.policy.recipe import decode
from curateevo.policy.sandbox import run_policy
from curateevo.policy.source import check_static, normalised, policy_digest
from curateevo.trajectories.corpus import write_trajectories
from curateevo.trajectories.features import features_of
from curateevo.trajectories.flags import TurnFlag
from curateevo.trajectories.formats.openai import parse_openai
from tests.core.policy.operator_table import PAGE
from tests.core.trajectories.sources import scored

BASE = source_of("keep-all")
PLACE = "    return corpus.items()\n"
LIMITS = Limits(memory_bytes=256 << 20, cpu_seconds=4)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve trajectories of two families, some of them wrong."""
    folder = tmp_path_factory.mktemp("corpus")
    tools = [
        {
            "type": "function",
            "function": {"name": n, "parameters": {"type": "object", "properties": {"x": {}}}},
        }
        for n in "fg"
    ]
    made = []
    for number in range(12):
        name = "fg"[number % 2]
        call = {
            "id": "c",
            "type": "function",
            "function": {"name": name, "arguments": f'{{"x": "value{number}"}}'},
        }
        messages = [
            {"role": "user", "content": f"please use value{number} now"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {
                "role": "tool",
                "tool_call_id": "c",
                "name": name,
                "content": "error" if number % 4 == 3 else f"ok value{number} code k{number}",
            },
            {"role": "assistant", "content": "Done."},
        ]
        row = {"id": f"t{number}", "messages": messages, "tools": tools, "success": number % 4 != 3,
               "task": {"id": f"task{number}", "env": "toolworld", "state": "{}", "tags": [name]}}  # fmt: skip
        made.append(parse_openai(row, f"x:{number}"))
    write_trajectories(made, folder)
    scored(features_of(made)).write_parquet(folder / "features.parquet")
    return folder


def policy(tmp_path: Path, body: str, head: str = "") -> Path:
    path = tmp_path / "policy.py"
    path.write_text(BASE.replace(PLACE, f"{body}\n{PLACE}").replace("POLICY_API", f"{head}\nPOLICY_API", 1))
    return path


def test_what_the_page_on_policies_shows_runs(corpus: Path, tmp_path: Path) -> None:
    """Its whole policy, and the lines under the general forms; its flags are those that turns have."""
    page = PAGE.read_text(encoding="utf-8")
    path = tmp_path / "policy.py"
    whole = page.split("```python\n", 1)[1].split("```", 1)[0]
    path.write_text(whole.replace("per_group=40", "per_group=4"))  # twelve trajectories are few
    assert curate_with_gate(path, corpus, dev_prompts={}).material.sft
    lines = re.findall(r"^ {4}(calls = .+|items\.\w+\(lambda .+)$", page, re.MULTILINE)
    assert len(lines) == 4
    body = "\n".join(f"    {line}" for line in ("items = corpus.items()", *lines))
    assert curate_with_gate(policy(tmp_path, body), corpus, dev_prompts={}).material.sft
    assert re.findall(r"^\| ([A-Z_]+) \|", page, re.MULTILINE) == [flag.name for flag in TurnFlag]


@pytest.mark.parametrize("name", NAMES)
def test_built_in_policies_pass_the_gate(name: str, corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text(source_of(name))
    found = curate_with_gate(path, corpus, dev_prompts={"d": "another prompt altogether"})
    assert found.material.sft and found.run.tier.startswith("process+rlimits")
    assert "seccomp" in found.run.tier
    rows = {entry["trajectory"] for entry in found.material.lineage if entry["resource"] == "sft"}
    assert rows == ({"t3", "t7", "t11"} ^ {f"t{n}" for n in range(12)} if name == "success-only" else rows)


HOSTILE = {
    "loops for ever": ("    while True: pass", "timeout|cpu"),
    "eats memory": ("    x = []\n    while True: x.append(bytearray(1 << 22))", "memory"),
    "forks": ("    import os\n    os.fork()", "policy-error"),
    "starts a program": ("    import subprocess\n    subprocess.run(['id'])", "policy-error"),
    "opens a socket": ("    import socket\n    socket.socket()", "policy-error"),
    "opens a unix socket": ("    import socket\n    socket.socket(socket.AF_UNIX)", "policy-error"),
    "reads a file": ("    open('/etc/passwd').read()", "policy-error"),
    "reads the grader": ("    import curateevo_jobs.benchmarks.base", "policy-error"),
    "reads /proc": ("    open('/proc/self/environ').read()", "policy-error"),
    "writes a file outside": ("    open('/tmp/curateevo-evil', 'w').write('x')", "policy-error"),
    "fills the disk": (
        "    f = open('big', 'wb')\n    while True: f.write(b'x' * (1 << 20))",
        "policy-error",
    ),
    "links out": ("    import os\n    os.symlink('/etc/passwd', 'l')\n    open('l').read()", "policy-error"),
    "prints without end": ("    while True: print('x' * 10000)", "output"),
    "ends the process": ("    import os\n    os._exit(0)", "policy-exit"),
    "kills its parent": ("    import os\n    os.kill(os.getppid(), 9)", "policy-error"),
    "changes modes": ("    import os\n    os.chmod('/tmp', 0o777)", "policy-error"),
    "raises its limits": (
        "    import resource\n    resource.setrlimit(resource.RLIMIT_CPU, (99999, 99999))",
        "policy-error",
    ),
    "crashes in C": ("    import ctypes\n    ctypes.string_at(0)", "memory|policy-exit|policy-error"),
    "returns something else": ("    return 7", "policy-error"),
    "recurses": ("    def f(n): return f(n + 1)\n    f(0)", "policy-error"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_policies_end_as_rejected_with_a_reason(what: str, corpus: Path, tmp_path: Path) -> None:
    body, rule = HOSTILE[what]
    with pytest.raises(PolicyRejected, match=f"^({rule})"):
        run_policy(policy(tmp_path, body), corpus, limits=LIMITS, timeout_seconds=20)
    assert not Path("/tmp/curateevo-evil").exists()


def test_the_environment_is_empty(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s3cr3t")
    with pytest.raises(PolicyRejected) as caught:
        run_policy(
            policy(tmp_path, "    import os\n    raise ValueError(str(dict(os.environ)))"),
            corpus,
            limits=LIMITS,
        )
    assert "s3cr3t" not in str(caught.value) and "{}" in str(caught.value)


def test_a_listening_server_is_not_reached(corpus: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(3)
        reached = []

        def listen() -> None:
            try:
                reached.append(server.accept())
            except TimeoutError:
                pass

        thread = threading.Thread(target=listen)
        thread.start()
        body = f"    import socket\n    socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 1)"
        with pytest.raises(PolicyRejected):
            run_policy(policy(tmp_path, body), corpus, limits=LIMITS)
        thread.join()
    assert not reached


def test_no_process_of_a_policy_outlives_it(corpus: Path, tmp_path: Path) -> None:
    before = {p for p in os.listdir("/proc") if p.isdigit()}
    with pytest.raises(PolicyRejected):
        run_policy(policy(tmp_path, "    while True: pass"), corpus, limits=LIMITS, timeout_seconds=1)
    for pid in {p for p in os.listdir("/proc") if p.isdigit()} - before:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        assert b"curateevo.policy.child" not in command


STATIC = {
    "import": ("import os", "import (line"),
    "from": ("from subprocess import run", "import (line"),
    "relative": ("from . import x", "import (line"),
    "dunder name": ("x = __builtins__", "name"),
    "eval": ("x = eval", "name"),
    "open": ("x = open", "name"),
    "dunder attribute": ("x = ().__class__", "attribute"),
    "private attribute": ("x = api._x", "attribute"),
    "format": ("x = '{0.__class__}'", "attribute"),
    "async": ("async def f(): pass", "node"),
    "global": ("def f():\n    global PARAMS", "node"),
}


@pytest.mark.parametrize("what", STATIC)
def test_static_rules_name_rule_and_line(what: str) -> None:
    line, rule = STATIC[what]
    with pytest.raises(PolicyRejected) as caught:
        check_static(f"{BASE}\n\n{line}\n")
    assert str(caught.value).startswith(rule.split(" (")[0]) and caught.value.line


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("def (", "syntax"),
        (BASE.replace("POLICY_API = 1", "POLICY_API = 2"), "api-version"),
        (BASE.replace('PARAMS = {"rl_tasks": 200}', "PARAMS = make()"), "params"),
        (BASE.replace("def refine(items, ctx)", "def repine(items, ctx)"), "stage-missing"),
        (BASE.replace("def refine(items, ctx)", "def refine(items)"), "stage-signature"),
        (BASE + "#" * 300_000, "source-size"),
    ],
)
def test_contract_of_the_module_itself(source: str, rule: str) -> None:
    with pytest.raises(PolicyRejected, match=f"^{rule}"):
        check_static(source)


def test_the_id_of_a_policy_does_not_change_with_layout_and_comments() -> None:
    other = BASE.replace('"""Everything, as it is', '"""Other words: all').replace(
        "    return items", "    # why\n    return  items"
    )
    assert policy_digest(other) == policy_digest(BASE) and normalised(other) == normalised(BASE)
    assert policy_digest(BASE.replace("200", "201")) != policy_digest(BASE)


CONTRACT = {
    "sft-not-empty": "    return api.keep_short(corpus.items(), max_turns=0)",
    "no-dev-content": "",
    "deterministic": "    return corpus.items().keep(lambda i: hash(str(i.row)) % 2 == 0, 'chance')",
}


@pytest.mark.parametrize("rule", CONTRACT)
def test_contract_rules_on_rows(rule: str, corpus: Path, tmp_path: Path) -> None:
    dev = {"d": "please use value4 now"} if rule == "no-dev-content" else {}
    with pytest.raises(PolicyRejected, match=f"^{rule}"):
        curate_with_gate(policy(tmp_path, CONTRACT[rule]), corpus, dev_prompts=dev, settings=GateSettings(LIMITS))


def test_a_turn_budget_and_rl_tasks_that_resolve(corpus: Path, tmp_path: Path) -> None:
    path = policy(tmp_path, "")
    grow = "def augment(items, ctx):\n    return api.balance(items, ctx, per_group=500)"
    path.write_text(BASE.replace("def augment(items, ctx):\n    return items", grow))
    with pytest.raises(PolicyRejected, match="^turn-budget"):
        curate_with_gate(path, corpus, dev_prompts={})
    point = "def build_rl(items, ctx):\n    return [api.RlTask(0, 1, 'action_match')]"
    path.write_text(
        BASE.replace('def build_rl(items, ctx):\n    return api.rl_tasks(items, ctx, count=PARAMS["rl_tasks"])', point)
    )
    with pytest.raises(PolicyRejected, match="^rl-resolvable"):
        curate_with_gate(path, corpus, dev_prompts={})


@pytest.mark.parametrize(
    "answer",
    [
        {"sft": [[99, [0], 1, 0, [], None]], "rl": [], "memory": [], "lineages": [[]]},
        {"sft": [[0, [5], 1, 0, [], None]], "rl": [], "memory": [], "lineages": [[]]},
        {"sft": [[0, [1, 0], 1, 0, [], None]], "rl": [], "memory": [], "lineages": [[]]},
        {"sft": [[0, [0], 0, 0, [], None]], "rl": [], "memory": [], "lineages": [[]]},
        {"sft": [[True, [0], 1, 0, [], None]], "rl": [], "memory": [], "lineages": [[]]},
        {"sft": [], "rl": [[0, 0, "steal", True, 0]], "memory": [], "lineages": [[]]},
        {"sft": [], "rl": [], "memory": [[0, 0, 0, 5, 4, "s", 0, "fact", None]], "lineages": [[]]},
        {"sft": {}, "rl": [], "memory": [], "lineages": []},
        {},
    ],
)
def test_forged_answers_are_refused(answer: dict[str, object]) -> None:
    with pytest.raises(PolicyRejected, match="^resources"):
        decode(answer, [2, 2])
