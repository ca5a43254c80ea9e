"""curate in three steps is curate in one: same files, same digests; and nothing that the policy's side leaves is trusted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from curateevo.api.errors import ExitCode
from curateevo.api.evolution import Stage
from curateevo.api.spec import Augmentation, Corpus, CorpusSource, LlmEndpoint, Memory, Sandbox, Splits, SuiteRef
from curateevo.api.stage import CurateParams, IngestParams, Manifest, Outcome, StageRequest, StoreRef
from curateevo.evolution.requests import CONTEXT, CORPUS_FILES, POLICY
from curateevo.policy.builtin import source_of
from curateevo.store.artifacts import read_manifest
from curateevo.store.local import LocalStore
from curateevo_jobs.program import main
from tests.core.evolver.llmserver import chat_server
from tests.jobs.test_rewriting import rewrites

BASE = source_of("keep-all")
PLACE = "    return corpus.items()\n"
PREFIX = "curate/a1"


def with_body(body: str) -> str:
    return BASE.replace(PLACE, f"    {body}\n{PLACE}")


POLICIES = {
    "accepted": source_of("starter"),
    "says something": with_body("print('hello'); ctx.log('kept all \\ud800'); ctx.metric('rows', len(corpus))"),
    "statically refused": f"import os\n{BASE}",
    "no text": "\N{LATIN SMALL LETTER E WITH ACUTE}",
    "raises": with_body("raise ValueError('no \\ud800 way')"),
    "loops": with_body("while True: pass"),
    "keeps nothing": with_body("return api.keep_short(corpus.items(), max_turns=0)"),
    "by chance": with_body("return corpus.items().keep(lambda i: hash(str(i.row)) % 2 == 0, 'chance')"),
    "too many turns": BASE.replace(
        "def augment(items, ctx):\n    return items",
        "def augment(items, ctx):\n    return api.balance(items, ctx, per_group=900)",
    ),
}
REFUSED = {
    "statically refused": "import",
    "no text": "syntax",
    "raises": "policy-error",
    "loops": "timeout",
    "keeps nothing": "sft-not-empty",
    "by chance": "deterministic",
    "too many turns": "turn-budget",
}


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with an ingested toolworld corpus."""
    root = tmp_path_factory.mktemp("store")
    params = IngestParams(
        corpus=Corpus(sources=(CorpusSource(uri="toolworld://corpus?seed=3", format="toolworld"),)),
        suites=(SuiteRef(name="toolworld", params={"perSkill": 3}),),
        splits=Splits(),
    )
    request = StageRequest(
        evolution_uid="u",
        stage=Stage.INGEST,
        attempt=1,
        store=StoreRef(uri=root.as_uri()),
        prefix="ingest/a1",
        inputs={},
        params=params,
    )
    assert run("ingest", root, request) == 0
    return root


class Work:
    """A store of its own with a policy in it, and the request to curate with it."""

    def __init__(
        self, folder: Path, ingested: Path, policy: str, *, encoding: str = "utf-8", covered: tuple[str, ...] = ()
    ) -> None:
        self.folder = folder
        self.root = folder / "store"
        shutil.copytree(ingested, self.root)
        self.store = LocalStore(self.root)
        ingest = read_manifest(self.store, "ingest/a1")
        assert ingest is not None
        context = {"profile": {"turns": 7}, "failures": [], "family_success": {"chat": 0.5}, "covered_tools": covered}
        self.request = StageRequest(
            evolution_uid="u",
            version=0,
            stage=Stage.CURATE,
            attempt=1,
            store=StoreRef(uri=self.root.as_uri()),
            prefix=PREFIX,
            inputs={
                POLICY: self.store.put("policy.py", policy.encode(encoding)),
                CONTEXT: self.store.put("context.json", json.dumps(context).encode()),
                **{path: ingest.file(path).ref for path in CORPUS_FILES},
            },
            params=CurateParams(sandbox=Sandbox(timeout_seconds=3, memory="1Gi", cpu="1"), memory=Memory(), seed=1),
        )
        self.work = folder / "work"

    def whole(self) -> int:
        return run("curate", self.folder, self.request)

    def rewriting(self, url: str) -> None:
        """From now on policies may have text rewritten."""
        spec = Augmentation(llm=LlmEndpoint(base_url=url, model="m"))
        params = self.request.params.model_copy(update={"augmentation": spec})
        self.request = self.request.model_copy(update={"params": params})

    def step(self, name: str) -> int:
        return run("curate", self.folder, self.request, "--step", name, "--work", str(self.work))

    def contained(self, *again: str) -> subprocess.CompletedProcess[str]:
        """The policy's container: another process, with next to no environment, and the inputs read-only."""
        seen, answers = self.work / "visible", self.work / ("answers-again" if again else "answers")
        command = [
            sys.executable,
            "-m",
            "curateevo.policy.contained",
            "--visible",
            str(seen),
            "--answers",
            str(answers),
            *again,
        ]
        return subprocess.run(command, env={"HOME": "/tmp"}, capture_output=True, text=True, check=False)

    def manifest(self) -> Manifest:
        found = read_manifest(self.store, PREFIX)
        assert found is not None
        return found

    def said(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "termination.json").read_text())
        return found


def run(stage: str, folder: Path, request: StageRequest, *more: str) -> int:
    path = folder / "request.json"
    path.write_text(json.dumps(request.to_wire()))
    log = folder / "termination.json"
    return main([stage, "--request", str(path), "--termination-log", str(log), "--progress", "json", *more])


@pytest.mark.parametrize("what", POLICIES)
def test_three_steps_leave_what_one_leaves(what: str, ingested: Path, tmp_path: Path) -> None:
    encoding = "latin-1" if what == "no text" else "utf-8"
    one = Work(tmp_path / "one", ingested, POLICIES[what], encoding=encoding)
    three = Work(tmp_path / "three", ingested, POLICIES[what], encoding=encoding)
    assert one.whole() == 0
    assert three.step("fetch") == 0
    done = three.contained()
    assert done.returncode == 0, done.stderr
    assert three.step("publish") == 0
    first, second = one.manifest(), three.manifest()
    assert second.digest == first.digest
    assert [f for f in second.files if not f.volatile] == [f for f in first.files if not f.volatile]
    assert {f.path for f in second.files} == {f.path for f in first.files}
    assert (second.outcome, second.reason, second.message) == (first.outcome, first.reason, first.message)
    assert second.summary == first.summary
    assert second.input_digest == first.input_digest
    expected = (Outcome.REJECTED, REFUSED[what]) if what in REFUSED else (Outcome.OK, "")
    assert (first.outcome, first.reason) == expected
    assert second.usage.seconds > 0


REQUESTS = {
    "nothing requested": source_of("keep-all"),
    "rewrites requested": BASE.replace(
        "def augment(items, ctx):\n    return items",
        "def augment(items, ctx):\n    return api.request_rewrite(\n        api.keep_top(items, api.score_turns(items), "
        "count=3), ctx, kind='answer', instruction='x', keep=True)",
    ),
    "refused in the first pass": POLICIES["keeps nothing"],
    "refused in the second pass": with_body(
        "if ctx.rewritten: return api.keep_short(corpus.items(), max_turns=0)"
    ).replace(
        "def augment(items, ctx):\n    return items",
        "def augment(items, ctx):\n    return api.request_rewrite(items, ctx, kind='answer', instruction='x')",
    ),
}


@pytest.mark.parametrize("what", REQUESTS)
def test_five_steps_leave_what_one_leaves(what: str, ingested: Path, tmp_path: Path) -> None:
    one = Work(tmp_path / "one", ingested, REQUESTS[what])
    five = Work(tmp_path / "five", ingested, REQUESTS[what])
    with chat_server(rewrites(lambda text: f"Well, {text}")) as server:
        one.rewriting(server.url)
        five.rewriting(server.url)
        assert one.whole() == 0
        assert five.step("fetch") == 0
        assert five.contained().returncode == 0
        assert not (five.work / "visible" / "context-again.json").exists()
        assert five.step("fulfil") == 0
        asked = len(server.requests)
        done = five.contained("--again")
        assert done.returncode == 0, done.stderr
        assert five.step("publish") == 0
        assert len(server.requests) == asked
    first, second = one.manifest(), five.manifest()
    assert (asked > 0) == ("rewrites" in what or "second" in what) == (first.usage.calls > 0)
    assert second.digest == first.digest
    assert (second.outcome, second.reason, second.message) == (first.outcome, first.reason, first.message)
    assert second.usage.calls == first.usage.calls and second.usage.tokens == first.usage.tokens
    assert (first.reason == "sft-not-empty") == ("refused" in what)


def test_the_policys_side_sees_neither_states_nor_dev_tasks(ingested: Path, tmp_path: Path) -> None:
    work = Work(tmp_path / "w", ingested, BASE)
    assert work.step("fetch") == 0
    assert {p.name for p in (work.work / "visible").iterdir()} == {
        "policy.py",
        "context.json",
        "settings.json",
        "ready",
        "trajectories.parquet",
        "features.parquet",
    }
    assert {p.name for p in (work.work / "trusted").iterdir()} == {"tasks.parquet", "dev_prompts.json", "begun"}


def test_the_context_reaches_the_policy(ingested: Path, tmp_path: Path) -> None:
    work = Work(tmp_path / "w", ingested, with_body("ctx.metric('turns', ctx.profile['turns'])"))
    assert (work.step("fetch"), work.contained().returncode, work.step("publish")) == (0, 0, 0)
    notes = json.loads((work.root / PREFIX / "notes.json").read_text())
    assert notes["metrics"] == {"turns": 7.0}


@pytest.mark.parametrize("how", ["this artifact", "an equal one"])
def test_work_that_is_done_is_not_done_again(how: str, ingested: Path, tmp_path: Path) -> None:
    work = Work(tmp_path / "w", ingested, BASE)
    assert work.whole() == 0
    digest = work.manifest().digest
    if how == "an equal one":
        work.request = work.request.model_copy(update={"prefix": "curate/a2", "attempt": 2})
    assert work.step("fetch") == 0
    assert (work.work / "visible" / "done").exists()
    assert not (work.work / "visible" / "policy.py").exists()
    assert work.contained().returncode == 0
    assert not (work.work / "answers").exists()
    assert work.step("publish") == 0
    again = read_manifest(work.store, work.request.prefix)
    assert again is not None
    assert again.digest == digest
    assert (again.cached_from is not None) == (how == "an equal one")


def test_a_sandbox_that_can_not_be_set_up_is_tried_again(ingested: Path, tmp_path: Path) -> None:
    work = Work(tmp_path / "w", ingested, BASE)
    assert work.step("fetch") == 0
    (work.work / "visible" / "trajectories.parquet").write_bytes(b"no parquet")
    log = tmp_path / "log.json"
    command = ["--visible", str(work.work / "visible"), "--answers", str(work.work / "answers")]
    done = subprocess.run(
        [sys.executable, "-m", "curateevo.policy.contained", *command, "--termination-log", str(log)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ExitCode.TRANSIENT
    said = json.loads(log.read_text())
    assert (said["exitCode"], said["outcome"]) == (75, "Transient")
    assert "could not be set up" in said["message"]


def test_steps_in_pods_of_their_own_wait_for_each_other(ingested: Path, tmp_path: Path) -> None:
    work = Work(tmp_path / "w", ingested, BASE)
    (tmp_path / "w" / "request.json").write_text(json.dumps(work.request.to_wire()))
    seen, answers = work.work / "visible", work.work / "answers"
    publish = ["curateevo_jobs", "curate", "--step", "publish", "--work", str(work.work), "--wait", "60"]
    contained = ["curateevo.policy.contained", "--visible", str(seen), "--answers", str(answers), "--wait", "60"]
    commands = ([*publish, "--request", str(tmp_path / "w" / "request.json")], contained)
    processes = [subprocess.Popen([sys.executable, "-m", *c], stdout=subprocess.DEVNULL) for c in commands]
    assert all(p.poll() is None for p in processes)
    assert work.step("fetch") == 0
    assert [p.wait(timeout=90) for p in processes] == [0, 0]
    assert work.manifest().outcome is Outcome.OK


@pytest.mark.parametrize("step", ["publish", "contained"])
def test_a_step_waits_no_longer_than_it_is_told(step: str, ingested: Path, tmp_path: Path) -> None:
    work = Work(tmp_path / "w", ingested, BASE)
    work.work.mkdir()
    if step == "publish":
        more = ("--step", "publish", "--work", str(work.work), "--wait", "0.1")
        assert run("curate", work.folder, work.request, *more) == ExitCode.TRANSIENT
    else:
        assert work.contained().returncode == ExitCode.TRANSIENT


EMPTY: dict[str, Any] = {"sft": [], "rl": [], "memory": [], "lineages": []}
FINE = {**EMPTY, "sft": [[0, [0], 1, 0, [], None]], "lineages": [["keep"]]}


def text(answer: Any, **more: Any) -> bytes:
    return json.dumps({"answer": answer, "tier": "process+rlimits", "printed": "", **more}).encode()


Plant = Callable[[Path], None]


def content(data: bytes) -> Plant:
    def write(path: Path) -> None:
        path.write_bytes(data)

    return write


def link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def link_to_a_good_one(path: Path) -> None:
    good = path.with_name("good.json")
    good.write_bytes(text(FINE))
    path.symlink_to(good)


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 36)


FORGED: dict[str, tuple[Plant, str]] = {
    "missing": (lambda path: None, "ContractBroken"),
    "a link": (link, "ContractBroken"),
    "a link to an answer": (link_to_a_good_one, "ContractBroken"),
    "a folder": (lambda path: path.mkdir(), "ContractBroken"),
    "a pipe": (lambda path: os.mkfifo(path), "ContractBroken"),
    "huge": (huge, "output"),
    "empty": (content(b""), "resources"),
    "no JSON": (content(b"\x00\xff" * 50), "resources"),
    "deep": (content(b"[" * 200_000), "resources"),
    "deep inside": (content(text({**FINE, "logs": "DEEP"}).replace(b'"DEEP"', b"[" * 900 + b"]" * 900)), "Ok"),
    "a list": (content(b"[1]"), "resources"),
    "no answer": (content(b"{}"), "resources"),
    "an answer that is a text": (content(text("x")), "resources"),
    "a tier that is a number": (content(text(FINE, tier=7)), "resources"),
    "printed that is a list": (content(text(FINE, printed=[1])), "resources"),
    "a row that is not there": (content(text({**FINE, "sft": [[10**9, [0], 1, 0, [], None]]})), "resources"),
    "a turn that is not there": (content(text({**FINE, "sft": [[0, [10**6], 1, 0, [], None]]})), "resources"),
    "a negative row": (content(text({**FINE, "sft": [[-1, [0], 1, 0, [], None]]})), "resources"),
    "a row that is a list": (content(text({**FINE, "sft": [[[], [0], 1, 0, [], None]]})), "resources"),
    "entries that are numbers": (content(text({**FINE, "sft": [1, 2]})), "resources"),
    "entries that are objects": (content(text({**FINE, "sft": [{"0": 1}]})), "resources"),
    "a lineage that is not there": (content(text({**FINE, "sft": [[0, [0], 1, 99, [], None]]})), "resources"),
    "lineages that are numbers": (content(text({**FINE, "lineages": [7]})), "resources"),
    "a number beyond floats": (content(text({**FINE, "metrics": {"x": 10**400}})), "resources"),
    "a number of many digits": (
        content(text({**FINE, "metrics": {"x": "X"}}).replace(b'"X"', b"1" * 9999)),
        "resources",
    ),
    "logs that are an object": (content(text({**FINE, "logs": {"a": 1}})), "resources"),
    "a copy a thousand times for every row": (
        content(text({**FINE, "sft": [[0, [0], 1000, 0, [], None]] * 5000})),
        "turn-budget",
    ),
    "more notes than allowed": (
        content(text({**FINE, "memory": [[0, 0, 0, 0, 5, "s", 0, "fact", None]] * 5001})),
        "memory-count",
    ),
    "a reward that does not exist": (content(text({**FINE, "rl": [[0, 0, "gift", True, 0]]})), "resources"),
    "a note outside of its result": (
        content(text({**FINE, "memory": [[0, 0, 9, 0, 5, "s", 0, "fact", None]]})),
        "memory-size",
    ),
    "a refusal without a rule": (content(text({"rejected": {"message": "x"}})), "resources"),
    "a refusal that is a text": (content(text({"rejected": "no"})), "resources"),
    "a refusal with a strange rule": (content(text({"rejected": {"rule": "a b\n", "message": ""}})), "resources"),
    "a refusal with a strange line": (
        content(text({"rejected": {"rule": "policy-error", "message": ["\ud800"], "line": "x" * 10**6}})),
        "policy-error",
    ),
    "halves of characters": (
        content(
            text({**FINE, "lineages": [["\ud800"]], "logs": ["\udfff"], "metrics": {"\ud800": 1}}, printed="\ud800")
        ),
        "Ok",
    ),
    "a strange tier": (content(text(FINE, tier="<b>best</b>" * 100)), "Ok"),
}


@pytest.mark.parametrize("what", FORGED)
def test_forged_answers_end_as_refused_or_as_a_broken_contract(what: str, ingested: Path, tmp_path: Path) -> None:
    plant, expected = FORGED[what]
    work = Work(tmp_path / "w", ingested, BASE)
    assert work.step("fetch") == 0
    (work.work / "answers").mkdir()
    for number in (1, 2):
        plant(work.work / "answers" / f"answer-{number}.json")
    code = work.step("publish")
    said = work.said()
    if expected == "ContractBroken":
        assert (code, said["outcome"]) == (ExitCode.CONTRACT_BROKEN, "ContractBroken")
        assert read_manifest(work.store, PREFIX) is None
        return
    assert code == 0
    manifest = work.manifest()
    assert (manifest.outcome, manifest.reason) == (
        (Outcome.OK, "") if expected == "Ok" else (Outcome.REJECTED, expected)
    )
    assert len(manifest.message) < 2000


@pytest.mark.parametrize("reason", ["", "nobody cancels orders"])
def test_a_rare_tool_of_the_champions_data_goes_with_a_reason_only(reason: str, ingested: Path, tmp_path: Path) -> None:
    source = with_body("return api.drop_tools(corpus.items(), ['cancel_order'])")
    params = {"rl_tasks": 200, "dropped_tools": {"cancel_order": reason}}
    work = Work(
        tmp_path / "w",
        ingested,
        source.replace('PARAMS = {"rl_tasks": 200}', f"PARAMS = {params}"),
        covered=("cancel_order", "find_order"),
    )
    assert work.whole() == 0
    assert (work.manifest().outcome, work.manifest().reason) == (
        (Outcome.OK, "") if reason else (Outcome.REJECTED, "rare-tools")
    )
    if reason:
        profile = json.loads((work.root / PREFIX / "profile.json").read_text())
        assert "find_order" in profile["covered_tools"] and "cancel_order" not in profile["covered_tools"]


def test_the_second_answer_is_looked_at_as_well(ingested: Path, tmp_path: Path) -> None:
    work = Work(tmp_path / "w", ingested, BASE)
    assert work.step("fetch") == 0
    answers = work.work / "answers"
    answers.mkdir()
    (answers / "answer-1.json").write_bytes(text(FINE))
    assert work.step("publish") == ExitCode.CONTRACT_BROKEN
    (answers / "answer-2.json").write_bytes(text({**FINE, "sft": [[1, [0], 1, 0, [], None]]}))
    assert work.step("publish") == 0
    assert work.manifest().reason == "deterministic"


def test_static_rules_hold_whatever_was_answered(ingested: Path, tmp_path: Path) -> None:
    work = Work(tmp_path / "w", ingested, f"import os\n{BASE}")
    assert work.step("fetch") == 0
    (work.work / "answers").mkdir()
    for number in (1, 2):
        (work.work / "answers" / f"answer-{number}.json").write_bytes(text(FINE))
    assert work.step("publish") == 0
    assert work.manifest().reason == "import"
