"""What a report tells, read from a run's folder and store. Whatever is not there yet is left out, never guessed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from curateevo.api.errors import ContractBroken, CurateEvoError
from curateevo.api.evolution import CurationEvolution, PolicyVersion, Reason, Stage
from curateevo.api.stage import DecisionRecord, EvaluateSummary, Manifest, ScoreTable, SplitScore, StoreRef
from curateevo.evolution.names import attempt_prefix, decision_key
from curateevo.evolver.patch import unified_diff
from curateevo.local.objects import RunFolder
from curateevo.store.artifacts import read_manifest
from curateevo.store.connect import connect
from curateevo.store.protocol import Store

JsonObject = dict[str, Any]
NO_POLICY = (Reason.NO_PROPOSAL, Reason.BUDGET_SPENT)
"""Why a run ends in a round that has no version."""


@dataclass(frozen=True, slots=True)
class VersionStory:
    """One version: what was tried and why, what it made, what it was measured at, what became of it."""

    version: PolicyVersion
    decision: DecisionRecord | None
    proposal: JsonObject | None
    """method, hypothesis, expected, edits."""
    diagnosis: JsonObject | None
    """Of the parent's failures, which this version was to mend."""
    source: str
    diff: str
    """Against the parent; empty for version 0."""
    profile: JsonObject | None
    """Of what the policy kept."""
    scores: dict[str, SplitScore]
    """Mean over training seeds, by split (diag, sel)."""
    manifests: dict[Stage, Manifest]
    """propose (of this version), curate, train and evaluate, as far as they are done."""
    training: JsonObject | None = None
    """Rows, and per model its seed and what the release gate saw."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A round that ended before there was a policy to test: it has no version."""

    number: int
    parent: int | None
    """The champion that was to be improved on."""
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Story:
    evolution: CurationEvolution
    versions: list[VersionStory]
    corpus_profile: JsonObject | None
    ingest: Manifest | None
    floors: list[tuple[str, str, SplitScore]] = field(default_factory=list)
    """(subject, split, score)."""
    sealed: list[tuple[str, SplitScore]] = field(default_factory=list)
    """First and last champion, and floors, on the sealed test."""
    skipped: list[Skipped] = field(default_factory=list)
    """Rounds in which nothing was proposed."""
    runs: dict[Stage, Manifest] = field(default_factory=dict)
    """floors and seal, as far as they are done."""
    leaked: list[Any] = field(default_factory=list)
    """Rows of ingest's `leaked.jsonl`: trajectories that were kept out, and why."""
    sealed_tasks: ScoreTable | None = None
    """First and last champion on the sealed test, task by task."""


def read_story(folder: RunFolder) -> Story:
    """Everything that a run has so far. Raises ContractBroken when the folder is no run."""
    evolution = folder.evolution()
    store = connect(StoreRef(uri=evolution.spec.storage.uri, endpoint=evolution.spec.storage.endpoint))
    uid = evolution.metadata.uid or ""
    stages = evolution.status.stages
    ingest = _manifest(store, uid, Stage.INGEST, None, stages)
    runs = {s: m for s in (Stage.FLOORS, Stage.SEAL) if (m := _manifest(store, uid, s, None, stages)) is not None}
    sealed_of = _scores(runs.get(Stage.SEAL))
    versions = folder.versions()
    floors = [
        (name, split, s) for name, splits in _scores(runs.get(Stage.FLOORS)).items() for split, s in splits.items()
    ]
    sealed = [(name, s) for name, split, s in floors if split == "test"] if sealed_of else []
    sealed += [(name, splits["test"]) for name, splits in sealed_of.items() if "test" in splits]
    return Story(
        evolution=evolution,
        versions=[_version(store, uid, v, versions) for _, v in sorted(versions.items())],
        corpus_profile=_json(store, ingest, "profile.json"),
        ingest=ingest,
        floors=floors,
        sealed=sealed,
        skipped=read_skipped(store, evolution, versions),
        runs=runs,
        leaked=_json_lines(store, ingest, "leaked.jsonl"),
        sealed_tasks=_table(store, runs.get(Stage.SEAL), "test/scores.json"),
    )


def read_skipped(store: Store, evolution: CurationEvolution, versions: dict[int, PolicyVersion]) -> list[Skipped]:
    """The rounds that have a decision and no version, and the one that ended the run: that has no decision either, the
    status says why it ended."""
    status, uid = evolution.status, evolution.metadata.uid or ""
    missing = (n for n in range(status.decided + 1) if n not in versions)
    records = [record for n in missing if (record := _decision(store, uid, n)) is not None]
    skipped = [Skipped(r.number, r.parent, r.reason, r.message) for r in records]
    if status.round > status.decided and status.round not in versions and status.reason in NO_POLICY:
        champion = status.champion.number if status.champion else None
        skipped.append(Skipped(status.round, champion, status.reason.value, status.message))
    return skipped


def _version(store: Store, uid: str, version: PolicyVersion, versions: dict[int, PolicyVersion]) -> VersionStory:
    number = version.spec.number
    manifests = {
        stage: m
        for stage in (Stage.CURATE, Stage.TRAIN, Stage.EVALUATE)
        if (m := _manifest(store, uid, stage, number, version.status.stages)) is not None
    }
    proposed = _proposal(store, version)
    if proposed is not None:
        manifests[Stage.PROPOSE] = proposed
    source = _text(store, version.spec.policy_key)
    parent = versions.get(version.spec.parent) if version.spec.parent is not None else None
    before = _text(store, parent.spec.policy_key) if parent else ""
    return VersionStory(
        version=version,
        decision=_decision(store, uid, number),
        proposal=_json(store, proposed, "proposal.json"),
        diagnosis=_json(store, proposed, "diagnosis.json"),
        source=source,
        diff=unified_diff(before, source, f"v{version.spec.parent}", f"v{number}") if parent else "",
        profile=_json(store, manifests.get(Stage.CURATE), "profile.json"),
        scores=_mean_scores(_scores(manifests.get(Stage.EVALUATE))),
        manifests=manifests,
        training=_json(store, manifests.get(Stage.TRAIN), "training.json"),
    )


def _decision(store: Store, uid: str, number: int) -> DecisionRecord | None:
    raw = store.get(decision_key(uid, number))
    try:
        return DecisionRecord.model_validate_json(raw) if raw else None
    except ValidationError:
        return None


def _mean_scores(by_subject: dict[str, dict[str, SplitScore]]) -> dict[str, SplitScore]:
    out: dict[str, SplitScore] = {}
    for split in ("diag", "sel"):
        found = [splits[split] for splits in by_subject.values() if split in splits]
        if found:
            families = {f: sum(s.families.get(f, 0.0) for s in found) / len(found) for f in found[0].families}
            p = sum(s.p for s in found) / len(found)
            total = found[0].tasks
            out[split] = SplitScore(
                p=p,
                tasks=total,
                errors=sum(s.errors for s in found),
                tokens=sum(s.tokens for s in found),
                families=families,
            )
    return out


def _manifest(store: Store, uid: str, stage: Stage, version: int | None, stages: dict[str, Any]) -> Manifest | None:
    status = stages.get(stage.value)
    for attempt in range(1, (status.attempt if status else 0) + 1):
        try:
            if (found := read_manifest(store, attempt_prefix(uid, stage, version, attempt))) is not None:
                return found
        except ContractBroken:
            continue
    return None


def _proposal(store: Store, version: PolicyVersion) -> Manifest | None:
    if version.spec.number == 0:
        return None
    try:
        return read_manifest(store, version.spec.policy_key.rpartition("/")[0])
    except ContractBroken:
        return None


def _scores(manifest: Manifest | None) -> dict[str, dict[str, SplitScore]]:
    """Nothing of a part of sel: the tasks that were run first are the hard ones."""
    if manifest is None or not isinstance(manifest.summary, EvaluateSummary):
        return {}
    stopped = manifest.summary.stopped
    return {} if stopped is not None and stopped.episodes < stopped.of_episodes else manifest.summary.scores


def _table(store: Store, manifest: Manifest | None, path: str) -> ScoreTable | None:
    if manifest is None or not manifest.has(path):
        return None
    try:
        return ScoreTable.model_validate_json(store.read(manifest.file(path).ref))
    except (CurateEvoError, ValidationError):
        return None


def _json(store: Store, manifest: Manifest | None, path: str) -> JsonObject | None:
    if manifest is None or not manifest.has(path):
        return None
    try:
        value = json.loads(store.read(manifest.file(path).ref))
    except (CurateEvoError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _json_lines(store: Store, manifest: Manifest | None, path: str) -> list[Any]:
    if manifest is None or not manifest.has(path):
        return []
    try:
        return [json.loads(line) for line in store.read(manifest.file(path).ref).splitlines()]
    except (CurateEvoError, ValueError):
        return []


def _text(store: Store, key: str) -> str:
    raw = store.get(key)
    return raw.decode("utf-8", "replace") if raw else ""
