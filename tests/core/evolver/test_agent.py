"""The agent proposer with programs that stand in for agents: good ones, bad ones, slow ones, and one that breaks out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from curateevo.api.errors import ContractBroken, Denied, SpecInvalid, Transient
from curateevo.api.spec import AgentProgram, Focus, LlmBudget, LlmEndpoint, TokenPrice
from curateevo.evolver import agent
from curateevo.evolver.agent import LOG, AgentProposer
from curateevo.evolver.proposal import Proposal, ProposalInput, ProposalRefused, TriedPolicy
from curateevo.evolver.workspace import open_workspace
from curateevo.trajectories.corpus import read_features, read_sealed_states
from tests.core.evolver.llmserver import PROMPT_TOKENS, Reply, chat_server, fails, hangs, says
from tests.core.evolver.test_llm import KEY, REPLACE, SEARCH, STARTER, given, lost
from tests.escape.world import write_corpus

SEALED = "a-sealed-state"
CLAIM = "HYPOTHESIS: rows break schemas\\nMETHOD: keep valid rows\\nFAMILY: filter\\nEXPECTED: fewer wrong calls\\n"
EDIT = f"""
policy = pathlib.Path("policy.py")
policy.write_text(policy.read_text().replace({SEARCH!r}, {REPLACE!r}))
"""
SAY = f"""
pathlib.Path("PROPOSAL.md").write_text({CLAIM.encode().decode("unicode_escape")!r})
"""
HEAD = """
import json, os, pathlib, subprocess, sys, time, urllib.request
def ask(**fields):
    body = {"model": "any", "messages": [{"role": "user", "content": "what now?"}], **fields}
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("round") / "corpus"
    write_corpus(folder, SEALED)
    return folder


class Case:
    """One round: a program as the agent, a server as its model."""

    def __init__(self, folder: Path) -> None:
        self.scratch, self.kept = folder / "scratch", folder / "kept"
        self.scratch.mkdir()
        self.workspace = self.scratch / "workspace"
        self.requests: list[dict[str, Any]] = []

    def propose(
        self, code: str, *replies: Reply, to: ProposalInput | None = None, command: tuple[str, ...] = (), **options: Any
    ) -> Proposal:
        timeout, env = options.pop("timeout", 60), options.pop("env", {})
        budget, price = options.pop("budget", LlmBudget()), options.pop("price", None)
        program = AgentProgram(command=command or (sys.executable, "-c", HEAD + code), timeout_seconds=timeout, env=env)
        with chat_server(*(replies or (says("edit the policy"),))) as server:
            self.requests = server.requests
            endpoint = LlmEndpoint(base_url=server.url, model="the-model", price=price)
            proposer = AgentProposer(
                program, endpoint, budget, scratch=self.scratch, kept=self.kept, api_key=KEY, **options
            )
            return proposer.propose(to or given())

    def refused(self, code: str, *replies: Reply, **options: Any) -> ProposalRefused:
        with pytest.raises(ProposalRefused) as caught:
            self.propose(code, *replies, **options)
        return caught.value


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_what_the_agent_leaves_is_the_proposal_with_what_its_calls_cost(case: Case) -> None:
    proposal = case.propose("ask()\nask(max_tokens=50)" + EDIT + SAY, price=TokenPrice(input=1.0, output=0.0))
    assert (proposal.method, proposal.hypothesis) == ("filter/keep-valid-rows", "rows break schemas")
    assert SEARCH not in proposal.source and REPLACE in proposal.source
    assert (proposal.calls, proposal.tokens, len(case.requests)) == (2, 2000, 2)
    assert proposal.usd == pytest.approx(2 * PROMPT_TOKENS / 1e6)
    assert [e["content"] for e in proposal.transcript] == ["what now?", "edit the policy", "edit the policy"]


def test_the_agent_sees_the_round_as_files(case: Case, corpus: Path) -> None:
    history = (lost(1, "filter/a"), lost(2, "filter/b"))
    episodes = [{"task": "t1", "success": 0.0, "messages": []}, {"task": "t2", "success": 1.0, "messages": []}]
    to = replace(given(Focus.EFFECTIVENESS, *history), tried=(TriedPolicy(2, "tried = 2\n"),))
    case.refused("", to=to, corpus=corpus, episodes=episodes)
    root = case.workspace
    task = (root / "TASK.md").read_text()
    assert "one of these families: refine, augment, route, memory." in task and "filter had their turn" in task
    assert (root / "policy.py").read_text() == STARTER == (root / "reference/parent.py").read_text()
    assert [json.loads(line)["task"] for line in (root / "failures/episodes.jsonl").read_text().splitlines()] == ["t1"]
    assert "wrong_tool" in (root / "failures/clusters.json").read_text()
    assert (root / "history/002.py").read_text() == "tried = 2\n"
    assert "filter: 0 of 2 committed" in (root / "history/lessons.md").read_text()
    assert {p.name.partition("-")[0] for p in (root / "cards").iterdir()} == {"refine", "augment", "route", "memory"}
    assert {p.name for p in (root / "corpus").iterdir()} == {
        "features.parquet",
        "tasks.parquet",
        "trajectories.parquet",
    }
    assert read_features(root / "corpus").height == read_features(corpus).height
    states = read_sealed_states(root / "corpus")
    assert set(states) == set(read_sealed_states(corpus)) and {s for _, s in states.values()} <= {"{}", None}
    assert SEALED.encode() not in b"".join(p.read_bytes() for p in root.rglob("*") if p.is_file())


def test_the_check_in_the_workspace_is_the_gate(case: Case, corpus: Path) -> None:
    """The same words for a policy that breaks a rule of the proposal, of the static gate, and of the rows."""
    checks = """
def check():
    done = subprocess.run(["make", "check"], capture_output=True, text=True)
    print(done.returncode, done.stdout, done.stderr, flush=True)
source = policy.read_text() if False else pathlib.Path("policy.py").read_text()
check()
"""
    breaks = """
policy.write_text(source.replace("    items = corpus.items()", "    items = corpus.items().keep(lambda item: False, 'none')"))
check()
policy.write_text("import os\\n" + source)
check()
policy.write_text(source)
"""
    code = checks + SAY + "policy = pathlib.Path('policy.py')\n" + breaks + EDIT + "check()"
    proposal = case.propose(code, corpus=corpus)
    log = (case.kept / LOG).read_text()
    assert "HYPOTHESIS is missing" in log
    assert "sft-not-empty" in log and "os may not be imported" in log
    assert f"proposal: passed ({proposal.method})" in log and "contract: passed" in log
    assert [line[0] for line in log.splitlines() if line[:2] in ("0 ", "2 ")] == ["2", "2", "2", "0"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (SAY, "change nothing"),
        (EDIT, "HYPOTHESIS is missing"),
        (EDIT + SAY + "open('Makefile', 'a').write('x')", "Makefile was changed"),
        (EDIT + SAY + "os.remove('reference/parent.py')", "reference/parent.py was changed"),
        (EDIT + SAY + "os.rename('round.json', 'x'); os.symlink('x', 'round.json')", "round.json was changed"),
        (SAY + "os.remove('policy.py')", "policy.py can't be read"),
        (SAY + "os.remove('policy.py'); os.symlink('reference/parent.py', 'policy.py')", "policy.py can't be read"),
        (SAY + "os.remove('policy.py'); os.mkfifo('policy.py')", "policy.py is no file"),
        (SAY + "open('policy.py', 'ab').write(b'\\xff')", "not UTF-8"),
        (SAY + "open('policy.py', 'a').write('#' * 300_000)", "larger than 256 KiB"),
        (EDIT + SAY + "policy.write_text(policy.read_text() + 'SECRET = 2\\n')", "outside the stage functions"),
        (EDIT + SAY + "policy.write_text('import os\\n' + policy.read_text())", "os may not be imported"),
        (EDIT + SAY.replace("FAMILY: filter", "FAMILY: prune"), "family prune is not asked for"),
        (EDIT + SAY.replace("FAMILY: filter", "FAMILY: memory"), "the edits touch select"),
        ("print('I am stuck'); sys.exit(3)", "ended with exit code 3; it said last: I am stuck"),
    ],
)  # fmt: skip
def test_what_may_not_be_is_refused_by_name(case: Case, code: str, message: str) -> None:
    error = case.refused(code)
    assert error.reason == "ProposalRefused" and message in error.message


def test_a_family_that_lost_twice_is_refused_and_so_is_what_was_tried(case: Case, tmp_path: Path) -> None:
    to = given(Focus.EFFECTIVENESS, lost(1, "filter/a"), lost(2, "filter/b"))
    error = case.refused(EDIT + SAY, to=to)
    assert "family filter is not asked for" in error.message and REPLACE in error.source
    (tmp_path / "again").mkdir()
    tried = (TriedPolicy(4, STARTER.replace(SEARCH, REPLACE)),)
    assert (
        "it does what version 4 did"
        in Case(tmp_path / "again").refused(EDIT + SAY, to=replace(given(), tried=tried)).message
    )


def test_its_environment_holds_what_the_spec_gives_and_a_token_instead_of_the_key(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CURATEEVO_LLM_API_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, KEY)
    case.propose(EDIT + SAY + "print(json.dumps(dict(os.environ)))", env={"MY_AGENT": "quiet"})
    seen = json.loads((case.kept / LOG).read_text())
    assert set(seen) - {"LC_CTYPE"} == {
        "PATH", "HOME", "TMPDIR", "LANG", "OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY", "CURATEEVO_MODEL",
        "MY_AGENT",
    }  # fmt: skip
    assert seen["CURATEEVO_MODEL"] == "the-model" and seen["HOME"].startswith(str(case.scratch))
    assert KEY not in json.dumps(seen)


def test_at_its_deadline_all_its_processes_are_killed_and_what_it_left_is_taken(case: Case) -> None:
    strays = (
        "\nfor daemon in (False, True):\n"
        "    child = subprocess.Popen(['sleep', '600'], start_new_session=daemon)\n"
        "    print(child.pid, flush=True)\n"
        'inner = \'import subprocess; print(subprocess.Popen(["sleep", "600"], start_new_session=True).pid, flush=True)\'\n'
        "subprocess.run([sys.executable, '-c', inner])\n"
        "time.sleep(600)\n"
    )
    started = time.monotonic()
    proposal = case.propose(EDIT + SAY + strays, timeout=3)
    assert time.monotonic() - started < 30 and REPLACE in proposal.source
    pids = [int(word) for word in (case.kept / LOG).read_text().split()]
    assert len(pids) == 3 and not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_other_children_of_this_process_are_left_alone(case: Case) -> None:
    mine = subprocess.Popen(["sleep", "600"])
    try:
        case.propose(EDIT + SAY)
        assert mine.poll() is None
    finally:
        mine.kill()
        mine.wait()


def test_a_spent_budget_ends_it_normally_and_what_it_left_is_taken(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "GRACE_SECONDS", 1.0)
    stubborn = "\nwhile True:\n    try: ask()\n    except Exception: time.sleep(0.05)\n"
    error = case.refused(stubborn, budget=LlmBudget(calls=2))
    assert (error.reason, error.calls, error.tokens, len(case.requests)) == ("BudgetSpent", 2, 2000, 2)
    assert "proposer.budget.calls" in error.message and "as its budget was spent" in error.message
    (tmp_path / "again").mkdir()
    again = Case(tmp_path / "again")
    assert again.propose(EDIT + SAY + stubborn, budget=LlmBudget(calls=2)).calls == 2


def test_a_call_under_way_at_the_deadline_is_counted(case: Case) -> None:
    error = case.refused("ask(max_tokens=700)", hangs, timeout=2)
    assert error.calls == 1 and error.tokens > 700


def test_what_was_spent_before_a_kill_counts(case: Case, tmp_path: Path) -> None:
    recorded: list[dict[str, Any]] = []
    case.refused("ask()", record=recorded.append)
    (tmp_path / "again").mkdir()
    proposal = Case(tmp_path / "again").propose("ask()" + EDIT + SAY, recorded=recorded)
    assert (proposal.calls, proposal.tokens) == (2, 2000)


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [(fails(401, f"bad key {KEY}"), Denied, "HTTP 401"), (fails(503), Transient, "HTTP 503, and no call was answered")],
)
def test_what_the_endpoint_does_wrong_is_not_the_agents_fault(
    case: Case, reply: Reply, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        case.propose("try: ask()\nexcept Exception: pass", reply)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("command", [("no-such-agent",), ("/",), ("a\0b",)])
def test_a_program_that_is_not_there_is_the_specs_fault(case: Case, command: tuple[str, ...]) -> None:
    with pytest.raises(SpecInvalid, match="spec.proposer.agent.command"):
        case.propose("", command=command)


def test_its_log_and_archive_are_kept_within_bounds(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "MAX_LOG_BYTES", 1000)
    monkeypatch.setattr(agent, "MAX_ARCHIVE_BYTES", 100)
    code = """
os.chdir("archive")
os.makedirs("b")
open("a.txt", "w").write("kept")
os.symlink("/etc/passwd", "b/link")
open("b/c.txt", "w").write("kept too")
open("b/large.txt", "w").write("x" * 200)
print("x" * 100_000 + "the end")
os.chdir("..")
"""
    case.propose(code + EDIT + SAY)
    kept = {p.relative_to(case.kept).as_posix() for p in case.kept.rglob("*") if p.is_file()}
    assert kept == {LOG, "archive/a.txt", "archive/b/c.txt"}
    log = (case.kept / LOG).read_text()
    assert len(log) == 1000 and log.endswith("the end\n")


def test_a_folder_that_is_no_workspace_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(ContractBroken, match="no workspace"):
        open_workspace(tmp_path)


@pytest.mark.parametrize(("refusing", "seen"), [("", True), ("refuse_inspection()", False)])
def test_a_process_that_refuses_inspection_keeps_its_environment_from_its_user(refusing: str, seen: bool) -> None:
    """As the propose program does, for the agent runs as its user. Root alone can look."""
    code = (
        "import ctypes, os, subprocess, sys\n"
        "from curateevo.policy.confine import refuse_inspection\n"
        "if os.getuid() == 0: os.setresuid(65534, 65534, 65534)\n"
        "ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)\n"  # what a change of user takes away
        f"{refusing}\n"
        "sys.stdout.buffer.write(subprocess.run(['cat', f'/proc/{os.getpid()}/environ'], stdout=subprocess.PIPE).stdout)"
    )
    environment = {**os.environ, "SECRET": KEY}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert (KEY.encode() in done.stdout) is seen
