"""GRACE on real models: the signals are gradients, planted defects score lower, and ingest says what it could not score."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import load_file, save_file

from curateevo.api.errors import SpecInvalid
from curateevo.api.evolution import Stage
from curateevo.api.spec import BaseModelRef, Corpus, CorpusSource, Splits
from curateevo.api.stage import IngestParams, Manifest, StageRequest, StoreRef
from curateevo.policy import api
from curateevo.policy.operators.items import Corpus as PolicyCorpus
from curateevo.trajectories.columns import Columns
from curateevo.trajectories.corpus import FEATURES, read_features
from curateevo.trajectories.formats.openai import parse_openai
from curateevo.trajectories.model import Trajectory
from curateevo_jobs.benchmarks.toolworld.corpus import Truth, generate
from curateevo_jobs.program import run_stage
from tests.jobs.test_train_support import BUILTIN_BASE, Seen, make_tiny_base

ROWS = 500


def trajectories(count: int) -> list[Trajectory]:
    return [parse_openai(row, "x:1") for row in generate(0)[0][:count]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first rows of toolworld's corpus, ingested by the command line and scored by toolworld's model."""
    folder = tmp_path_factory.mktemp("grace")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in generate(0)[0][:ROWS]))
    said = ingest(folder / "rows.jsonl", folder / "corpus")
    assert "not scored" not in said
    return folder / "corpus"


def ingest(rows: Path, corpus: Path, model: str = "builtin://toolworld") -> str:
    command = ["ingest", str(rows), "-o", str(corpus), "--grace", model]
    done = subprocess.run(
        [sys.executable, "-m", "curateevo.cli", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.train
def test_a_signal_is_the_gradient_of_the_turns_loss_at_the_last_hidden_state() -> None:
    import torch
    from torch.nn.functional import cross_entropy

    from curateevo_jobs.training import grace
    from curateevo_jobs.training.fit import answer_spans, tokenize
    from curateevo_jobs.training.rows import SftRow

    signals = grace.TurnSignals(BUILTIN_BASE, None)
    for run in trajectories(5):
        [row] = tokenize([SftRow(run.id, "", tuple(run.messages()), run.tools)], signals._tokenizer)
        ids = torch.tensor([row.tokens])
        hidden = signals._model.base_model(input_ids=ids).last_hidden_state.detach().requires_grad_()
        logits = signals._model.get_output_embeddings()(hidden)[0]
        found = signals.of(run)
        assert found is not None and found.shape == (len(run.turns), signals.width)
        for (start, end), signal in zip(answer_spans(row.mask), found, strict=True):
            loss = cross_entropy(logits[start - 1 : end - 1], ids[0, start:end])
            [gradient] = torch.autograd.grad(loss, hidden, retain_graph=True)
            wanted = gradient[0].sum(0)
            assert np.allclose((wanted / wanted.norm()).numpy(), signal, atol=1e-4)


@pytest.mark.train
def test_long_turns_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    from curateevo_jobs.training import grace

    signals = grace.TurnSignals(BUILTIN_BASE, None)
    whole = [signals.of(run) for run in trajectories(5)]
    monkeypatch.setattr(grace, "CHUNK", 3)
    for one, run in zip(whole, trajectories(5), strict=True):
        pieces = signals.of(run)
        assert one is not None and pieces is not None and np.allclose(one, pieces, atol=1e-5)


@pytest.mark.train
def test_what_does_not_fit_the_model_has_no_signals(tmp_path: Path) -> None:
    from curateevo_jobs.training.grace import TurnSignals

    signals = TurnSignals(make_tiny_base(tmp_path / "base", context=2048), None)
    [run] = trajectories(1)
    assert signals.of(run) is not None
    assert signals.of(replace(run, head=("x" * 2048,))) is None, "longer than the context"
    once = "{%- for m in messages %}{% if loop.last %}{% generation %}{{ m.content }}{% endgeneration %}{% endif %}{% endfor %}"
    assert len(run.turns) > 1 and TurnSignals(tmp_path / "base", once).of(run) is None, "marks the last turn alone"
    refusing = "{% generation %}{% endgeneration %}{{ raise_exception('no tools') }}"
    assert TurnSignals(tmp_path / "base", refusing).of(run) is None
    with pytest.raises(SpecInvalid, match="does not mark what the assistant says"):
        TurnSignals(tmp_path / "base", "{{ messages[0].content }}").of(run)


@pytest.mark.train
def test_ingest_counts_what_was_not_scored_and_scores_the_rest(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = generate(0)[0][:6]
    rows[2]["messages"][0]["content"] = "x" * 4096
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    base = make_tiny_base(tmp_path / "base", context=2048)
    said = ingest(tmp_path / "rows.jsonl", tmp_path / "corpus", str(base))
    assert "1 trajectories do not fit the model: not scored" in said
    features = read_features(tmp_path / "corpus")
    aligned = features["turn_alignment"].to_list()
    assert [len(row) for row in aligned] == features["turns"].to_list()
    assert [n for n, row in enumerate(aligned) if None in row] == [2]


@pytest.mark.train
def test_scores_are_used_again_until_the_model_changes(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in generate(0)[0][:3]))
    base, store = make_tiny_base(tmp_path / "base", context=2048), StoreRef(uri=(tmp_path / "store").as_uri())

    def scored(attempt: int) -> Manifest:
        params = IngestParams(
            corpus=Corpus(sources=(CorpusSource(uri=str(source)),), grace=True),
            suites=(),
            splits=Splits(),
            model=BaseModelRef(base=base.as_uri()),
        )
        request = StageRequest(
            evolution_uid="u", stage=Stage.INGEST, attempt=attempt, store=store, prefix=f"a{attempt}", inputs={},
            params=params,
        )  # fmt: skip
        return run_stage(request, Seen())

    first, again = scored(1), scored(2)
    assert first.cached_from is None and again.cached_from == "a1"
    weights = load_file(base / "model.safetensors")
    save_file({name: -w if "embed" in name else w for name, w in weights.items()}, base / "model.safetensors")
    other = scored(3)
    assert other.cached_from is None and other.file(FEATURES).sha256 != first.file(FEATURES).sha256


@pytest.mark.train
def test_the_same_corpus_and_model_give_the_same_scores(corpus: Path, tmp_path: Path) -> None:
    ingest(corpus.parent / "rows.jsonl", tmp_path / "again")
    assert (tmp_path / "again" / FEATURES).read_bytes() == (corpus / FEATURES).read_bytes()


def auc(better: list[float], worse: list[float]) -> float:
    """How often a better one scores higher; ties count half."""
    ranks = pl.Series(better + worse).rank("average")[: len(better)].sum()
    return (float(ranks) - len(better) * (len(better) + 1) / 2) / (len(better) * len(worse))


def within_families(scores: tuple[float, ...], families: list[str], good: list[bool]) -> float:
    """The AUC of good against bad of the same family, weighted by pairs."""
    groups: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for score, family, is_good in zip(scores, families, good, strict=True):
        groups[family][not is_good].append(score)
    pairs = [(auc(*group), len(group[0]) * len(group[1])) for group in groups.values() if all(group)]
    return sum(value * weight for value, weight in pairs) / sum(weight for _, weight in pairs)


@pytest.mark.train
def test_planted_defects_score_lower_than_good_runs_of_their_family(corpus: Path) -> None:
    """Bounds far from what was measured on the whole corpus: alignment .985, both .961, labels .845 (docs/policies.md)."""
    features = read_features(corpus)
    truth: dict[str, Truth] = generate(0)[1]
    good = [truth[name.split("/")[-1]].good for name in features["id"]]
    items = PolicyCorpus(Columns(features), lambda rows: {}).items()
    families = features["family"].to_list()
    assert within_families(api.score_grace(items, consistency=0.0), families, good) > 0.85
    assert within_families(api.score_grace(items), families, good) > 0.8
