"""A real vLLM server: it serves the very model, scores as the model in process does, and leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from curateevo.api.errors import Transient
from curateevo.api.spec import BaseModelRef, Evaluation, Memory, Sampling, Serving, SuiteRef
from curateevo.api.stage import EvaluateParams, EvaluateSummary, Subject, SubjectKind
from curateevo_jobs.agents.chat import Conversation, Generation
from curateevo_jobs.agents.endpoint import Endpoint
from curateevo_jobs.agents.identity import digest_model
from curateevo_jobs.agents.vllm import serve
from curateevo_jobs.benchmarks import registry
from curateevo_jobs.benchmarks.toolworld.phrasing import Skill
from curateevo_jobs.evaluate import evaluate
from tests.jobs import test_train_support as support

pytestmark = pytest.mark.vllm

START_SECONDS = 300.0
SKILLS = tuple(Skill)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return support.make_tiny_base(tmp_path_factory.mktemp("base"))


def group_is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for_end(group: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while group_is_alive(group) and time.monotonic() < deadline:
        time.sleep(0.2)
    return not group_is_alive(group)


def test_the_very_weights_are_served_and_the_group_is_stopped(base: Path, tmp_path: Path) -> None:
    with serve(base, arguments=(), chat_template=None, start_seconds=START_SECONDS, scratch=tmp_path) as server:
        assert server.model == f"sha256-{digest_model(base)[:32]}"
        endpoint = Endpoint(server.base_url, server.model)
        asked = [Conversation([{"role": "user", "content": "x" * n}], []) for n in (3, 3000)]
        short, long = endpoint.answer(asked, Generation(0.0, 4096), [0, 0])
        endpoint.close()
        assert short.error is None
        assert short.tokens > 0, "more tokens than the context are asked for, and fewer are given"
        assert long.context_full
    assert wait_for_end(server.process_group, 30)


def test_a_server_that_dies_says_why(base: Path, tmp_path: Path) -> None:
    started = time.monotonic()
    with (
        pytest.raises(Transient, match="no-such-flag"),
        serve(
            base,
            arguments=("--no-such-flag",),
            chat_template=None,
            start_seconds=START_SECONDS,
            scratch=tmp_path,
        ),
    ):
        pass
    assert time.monotonic() - started < START_SECONDS / 2


def test_a_server_that_is_not_ready_in_time_is_stopped(base: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(Transient, match="serveStartSeconds"),
        serve(base, arguments=(), chat_template=None, start_seconds=1.0, scratch=tmp_path),
    ):
        pass


def test_a_server_dies_with_its_parent(base: Path, tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib\n"
        "from curateevo_jobs.agents.vllm import serve\n"
        "base, scratch = map(pathlib.Path, sys.argv[1:])\n"
        "with serve(base, arguments=(), chat_template=None, start_seconds=300, scratch=scratch) as server:\n"
        "    print(server.process_group, flush=True)\n"
        "    time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, base, tmp_path], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    group = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert wait_for_end(group, 60)


@pytest.mark.slow
@pytest.mark.skipif(not support.BUILTIN_BASE.is_dir(), reason="toolworld's base model is not built")
def test_a_trained_model_scores_the_same_served_and_in_process(tmp_path: Path) -> None:
    args = {"per_device_train_batch_size": 16, "lr_scheduler_type": "cosine", "warmup_steps": 10}
    params = support.train_params(support.BUILTIN_BASE, sft_steps=60, sft_args=args)
    sft = params.training.sft.model_copy(update={"learning_rate": 2e-3})
    params = params.model_copy(update={"training": params.training.model_copy(update={"sft": sft, "save_steps": 100})})
    trained = support.train_apart(tmp_path / "train", params, support.sft_rows(220))
    assert trained.result is not None, trained.exit_code
    suites = (SuiteRef(name="toolworld", params={"perSkill": 6}),)
    scores = {}
    for engine in ("transformers", "vllm"):
        asked = EvaluateParams(
            subjects=(Subject(name="champion", kind=SubjectKind.MODEL),),
            splits=("sel",),
            model=BaseModelRef(base="builtin://toolworld"),
            evaluation=Evaluation(suites=suites, sampling=Sampling(max_turns=4, max_tokens=48)),
            memory=Memory(),
            serving=Serving.model_validate({"engine": engine}),
            serve_start_seconds=int(START_SECONDS),
            seed=0,
        )
        run = support.make_run(tmp_path / engine, asked)
        (run.inputs / "champion").mkdir()
        (run.inputs / "champion/model").symlink_to(trained.run.output / "model-0")
        ids = [task.id for task in registry.suite("toolworld").tasks(suites[0].params)]
        (run.inputs / "splits.json").write_text(json.dumps({"sel": ids}))
        summary = evaluate(run, asked).summary
        assert isinstance(summary, EvaluateSummary)
        scores[engine] = summary.scores["champion"]["sel"]
    assert scores["vllm"].errors == 0
    assert scores["vllm"].p > 0.2, "the model learnt enough for the comparison to mean something"
    assert scores["vllm"].families == scores["transformers"].families
