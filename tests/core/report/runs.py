"""Run folders made by hand from real models: complete, failed, interrupted, with floors only, and hostile ones."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from curateevo.api.base import digest_of
from curateevo.api.evolution import (
    Champion,
    Condition,
    Counts,
    CurationEvolution,
    EarlyStop,
    EvolutionPhase,
    EvolutionStatus,
    Measurement,
    ObjectMeta,
    PolicyVersion,
    Reason,
    Spent,
    Stage,
    StageState,
    StageStatus,
    Verdict,
    VersionPhase,
    VersionSpec,
    VersionStatus,
)
from curateevo.api.spec import EvolutionSpec, Focus, Memory, Sandbox
from curateevo.api.stage import (
    CurateParams,
    CurateSummary,
    DecisionRecord,
    EvaluateSummary,
    IngestSummary,
    Manifest,
    ProposeSummary,
    ScoreTable,
    SplitScore,
    StageRequest,
    StoreRef,
    Summary,
    TrainSummary,
    Usage,
)
from curateevo.evolution.names import attempt_prefix, decision_key, initial_policy_key, version_name
from curateevo.evolution.objective import cost, objective
from curateevo.evolution.stopping import stopped_text
from curateevo.local.objects import RunFolder
from curateevo.store.artifacts import publish
from curateevo.store.local import LocalStore

UID = "0a0b0c0d-1111-2222-3333-444455556666"
NAME = "support-agents"
START = 1_790_000_000.0
FAMILIES = ("refund", "shipping", "account", "weather", "timer", "small talk")
SEL_TASKS, CORPUS_TURNS = 240, 9200
SCRIPT = "<script>alert('owned')</script>"
BREAKOUT = "</span></pre></details></title></style>" + SCRIPT + '"><img src=x onerror=alert(1)>' + "{{ 7*7 }} {% raw %}"
INVISIBLE = "abc\u202edcba\u0000\u200b\ud800 end"
LONG = "long" * 5000


@dataclass(slots=True)
class Candidate:
    """What to make of one version."""

    focus: Focus | None
    method: str
    verdict: Verdict | None
    reason: Reason | None
    message: str
    parent: int | None = None
    success: dict[str, float] | None = None
    """By family; None when it was not measured."""
    turns: int = 5200
    delta: tuple[float, float, float] | None = None
    """Delta P, and its bounds."""
    hypothesis: str = "rows that end badly are imitated"
    expected: str = "fewer malformed calls"
    clusters: list[Any] = field(default_factory=list)
    stages: tuple[Stage, ...] = (Stage.CURATE, Stage.TRAIN, Stage.EVALUATE)
    phase: VersionPhase = VersionPhase.MEASURED
    notes: tuple[str, ...] = ()
    grpo_skipped: str = ""
    source: str = ""
    stopped: EarlyStop | None = None
    """Set when its evaluation ended early: `success` is that of what was run."""


LEAKED = "".join(
    json.dumps({"file": f"chat.jsonl:{n}", "line": 0, "reason": reason}) + "\n"
    for n, reason in enumerate(
        (
            "run-1: it is dev task toolworld/refund/1",
            "run-2: it shares 13 words in a row with dev task toolworld/refund/1: 'give me <b>my</b> money'",
            *(f"run-{k}: its prompt equals that of dev task toolworld/ship/{k}: 'where is it'" for k in range(9)),
            "run-3: its task is held out for evaluation",
        )
    )
)


@dataclass(slots=True)
class Maker:
    """Writes one run folder."""

    root: Path
    spec: EvolutionSpec
    uid: str = UID

    @property
    def store(self) -> LocalStore:
        return LocalStore(self.root / "store")

    def artifact(
        self,
        stage: Stage,
        version: int | None,
        files: dict[str, Any],
        summary: Summary,
        usage: Usage | None = None,
    ) -> Manifest:
        folder = self.root / "scratch" / f"{version}-{stage.value}"
        for name, value in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
        folder.mkdir(parents=True, exist_ok=True)
        request = StageRequest(
            evolution_uid=self.uid,
            version=version,
            stage=stage,
            attempt=1,
            store=StoreRef(uri=self.spec.storage.uri),
            prefix=attempt_prefix(self.uid, stage, version, 1),
            inputs={},
            params=CurateParams(sandbox=Sandbox(), memory=Memory(), seed=0),
        )
        return publish(self.store, request, folder, summary=summary, usage=usage)

    def evolution(self, status: EvolutionStatus, name: str = NAME) -> RunFolder:
        folder = RunFolder(self.root)
        meta = ObjectMeta(name=name, uid=self.uid)
        folder.save_evolution(CurationEvolution(metadata=meta, spec=self.spec, status=status))
        return folder

    def ingest(self, families: dict[str, int] | None = None, unscored: int = 0) -> None:
        summary = IngestSummary(
            trajectories=3400,
            turns=CORPUS_TURNS,
            successes=1800,
            set_aside=12,
            leaked=7,
            unscored=unscored,
            dev_tasks={"diag": 120, "sel": SEL_TASKS, "test": 240},
        )
        usage = Usage(seconds=31.2, cpu_seconds=29.0, peak_bytes=900 << 20)
        files = {"profile.json": profile(1.0, families), "leaked.jsonl": LEAKED}
        self.artifact(Stage.INGEST, None, files, summary, usage)

    def floors(self) -> None:
        scores = {
            "do-nothing": {s: score({f: float(f == "small talk") for f in FAMILIES}) for s in ("sel", "test")},
            "untrained": {s: score(dict.fromkeys(FAMILIES, 0.11)) for s in ("sel", "test")},
        }
        self.artifact(
            Stage.FLOORS,
            None,
            {},
            EvaluateSummary(scores=scores),
            Usage(seconds=71, cpu_seconds=60, peak_bytes=2 << 30),
        )

    def seal(self, first: int, last: int) -> None:
        before, after = dict.fromkeys(FAMILIES, 0.3), dict.fromkeys(FAMILIES, 0.55)
        scores = {f"v{first}-seed-0": {"test": score(before)}, f"v{last}-seed-0": {"test": score(after)}}
        table = ScoreTable(
            tasks=tuple(f"t{i}" for i in range(240)),
            families=tuple(FAMILIES[i % 6] for i in range(240)),
            scores={
                f"v{first}-seed-0": tuple((float(i % 10 < 3),) for i in range(240)),
                f"v{last}-seed-0": tuple((float(i % 20 < 11),) for i in range(240)),
            },
        )
        files = {"test/scores.json": table.to_wire()}
        self.artifact(
            Stage.SEAL,
            None,
            files,
            EvaluateSummary(scores=scores),
            Usage(seconds=80, gpu_seconds=70, peak_bytes=3 << 30),
        )

    def version(self, number: int, c: Candidate) -> Measurement | None:
        key = self._policy(number, c)
        measured = self._stages(number, c)
        digest = digest_of(c.source or number)
        if c.verdict is not None and c.reason is not None:
            delta = c.delta or (None, None, None)
            record = DecisionRecord(
                number=number,
                verdict=c.verdict,
                reason=c.reason.value,
                message=c.message[:2048],
                policy_digest=digest,
                policy_key=key,
                parent=c.parent,
                champion_before=c.parent,
                p=measured.p if measured else None,
                c=measured.c if measured else None,
                j=measured.j if measured else None,
                delta_p=delta[0],
                delta_j=delta[0] + 0.002 if delta[0] is not None else None,
                lower=delta[1],
                upper=delta[2],
                tasks=SEL_TASKS if c.delta else 0,
            )
            self.store.put(decision_key(self.uid, number), json.dumps(record.to_wire()).encode())
        states = {
            s.value: StageStatus(state=StageState.DONE, attempt=1, started_at=START + 600 * number) for s in c.stages
        }
        if c.phase is VersionPhase.TRAINING:
            states["train"] = StageStatus(
                state=StageState.ACTIVE, attempt=2, started_at=START + 900, infrastructure_failures=1
            )
        status = VersionStatus(
            phase=c.phase,
            stages=states,
            measurement=measured,
            verdict=c.verdict,
            reason=c.reason,
            message=c.message[:2048],
        )
        spec = VersionSpec(
            evolution_uid=self.uid,
            number=number,
            parent=c.parent,
            focus=c.focus,
            policy_digest=digest,
            policy_key=key,
            corpus_key="x",
            corpus_digest="sha256:0",
            evolution_spec=self.spec,
        )
        meta = ObjectMeta(name=version_name(NAME, number), uid=f"uid-{number}")
        RunFolder(self.root).save_version(PolicyVersion(metadata=meta, spec=spec, status=status))
        return measured

    def _policy(self, number: int, c: Candidate) -> str:
        source = c.source or policy(number)
        if number == 0:
            return self.store.put(initial_policy_key(self.uid), source.encode("utf-8", "replace")).key
        files = {
            "policy.py": source.encode("utf-8", "replace").decode(),
            "proposal.json": {
                "method": c.method,
                "hypothesis": c.hypothesis,
                "expected": c.expected,
                "edits": [],
            },
            "diagnosis.json": {"episodes": 120, "failures": 71, "familySuccess": {}, "clusters": c.clusters},
        }
        usage = Usage(seconds=12.5, cpu_seconds=2.0, peak_bytes=80 << 20, calls=2, tokens=18_400, usd=0.21)
        return self.artifact(Stage.PROPOSE, number, files, ProposeSummary(method="m"), usage).file("policy.py").key

    def _stages(self, number: int, c: Candidate) -> Measurement | None:
        if Stage.CURATE in c.stages:
            kept = CurateSummary(
                sft_rows=c.turns // 3,
                sft_turns=c.turns - 500,
                rl_tasks=200,
                rl_turns=500,
                memory_items=4,
                tier="process+landlock",
            )
            usage = Usage(seconds=6.1, cpu_seconds=5.0, peak_bytes=240 << 20)
            self.artifact(Stage.CURATE, number, {"profile.json": profile(c.turns / CORPUS_TURNS)}, kept, usage)
        if Stage.TRAIN in c.stages and c.phase is not VersionPhase.TRAINING:
            trained = TrainSummary(
                seeds=(0,),
                sft_steps=140,
                grpo_steps=0 if c.grpo_skipped else 100,
                grpo_skipped=c.grpo_skipped,
                released="grpo",
                notes=c.notes,
            )
            gate = {"models": [{"seed": 0, "callRate": 0.93, "deadGroupFraction": 0.41}]}
            usage = Usage(seconds=1830, cpu_seconds=2400, gpu_seconds=1790, peak_bytes=21 << 30)
            self.artifact(Stage.TRAIN, number, {"training.json": gate}, trained, usage)
        if Stage.EVALUATE not in c.stages or c.success is None:
            return None
        scores = {"seed-0": {"diag": score(c.success, 120), "sel": score(c.success)}}
        usage = Usage(seconds=240, cpu_seconds=100, gpu_seconds=200, peak_bytes=12 << 30)
        self.artifact(Stage.EVALUATE, number, {}, EvaluateSummary(scores=scores, stopped=c.stopped), usage)
        p, spent = scores["seed-0"]["sel"].p, cost(c.turns, CORPUS_TURNS)
        return Measurement(
            p=None if c.stopped else p,
            c=spent,
            j=None if c.stopped else objective(p, spent, 0.3),
            stopped=c.stopped,
            sft_turns=c.turns - 500,
            rl_turns=500,
            memory_items=4,
            seconds=2076.1,
            gpu_seconds=1990,
        )


def score(families: dict[str, float], tasks: int = SEL_TASKS) -> SplitScore:
    return SplitScore(p=sum(families.values()) / len(families), tasks=tasks, errors=0, tokens=9000, families=families)


def profile(scale: float, families: dict[str, int] | None = None) -> dict[str, Any]:
    """A profile of a corpus, or of a share of it; what is kept is better than what is not."""
    bad = 0.12 * scale * scale
    return {
        "trajectories": round(3400 * scale),
        "turns": round(CORPUS_TURNS * scale),
        "calls": round(5100 * scale),
        "tokens": round(410_000 * scale),
        "success": {"true": round(1800 * min(1.0, scale * 1.3)), "false": round(1600 * bad), "unknown": 0},
        "turns_per_trajectory": {"p10": 1.0, "p50": 2.0, "p90": 5.0, "p99": 9.0, "p100": 14.0},
        "tokens_per_trajectory": {"p10": 20.0, "p50": 88.0, "p90": 240.0, "p99": 700.0, "p100": 2100.0},
        "turn_flags": {"CALL": 0.52, "ERROR": round(bad, 4), "MALFORMED": round(bad / 8, 4), "FINAL": 0.44},
        "exact_duplicates": round(140 * bad),
        "families": families or {f: round(900 * scale / (i + 1)) for i, f in enumerate(FAMILIES)},
        "tools": {"get_weather": 215},
        "sources": {"prod": 3400},
        "representation": representation(scale),
        "augmentation": {"requested": 12, "answered": 9, "unanswered": {"budget": 1, "values": 2}},
    }


def representation(scale: float) -> dict[str, Any]:
    """Shares of a made-up policy: some values surely over, some surely under, some unsure, some of too few tasks."""

    def part(corpus: float, ratio: float, low: float | None, high: float | None) -> dict[str, Any]:
        return {"share": round(corpus * ratio, 4), "ratio": ratio, "low": low, "high": high}

    def value(name: str, corpus: float, sft: tuple[Any, ...], rl: tuple[Any, ...]) -> dict[str, Any]:
        parts = {"sft": part(corpus, *sft), "rl": part(corpus, *rl)}
        return {"value": name, "tasks": 40, "corpus": corpus, **parts}

    family = [
        value("refund", 0.4, (1.4 * scale, 1.2 * scale, 1.6 * scale), (1.0, 0.8, 1.3)),
        value("shipping", 0.3, (0.9, 0.7, 1.1), (0.4, 0.2, 0.7)),
        value("account", 0.05, (0.0, 0.0, 0.11), (12.0, 6.0, 15.0)),
        value("small talk", 0.1, (0.8, None, None), (0.3, None, None)),
    ]
    lengths = [
        value("1 to 2", 0.6, (1.2, 1.1, 1.3), (1.0, 0.9, 1.1)),
        value("3 to 5", 0.4, (0.7, 0.6, 0.8), (1.0, 0.8, 1.2)),
    ]
    return {
        "tasks": 400,
        "dimensions": [
            {"name": "source", "values": [value("prod", 1.0, (1.0, 1.0, 1.0), (1.0, 1.0, 1.0))]},
            {"name": "family", "values": family},
            {"name": "turns", "values": lengths},
        ],
    }


def policy(number: int) -> str:
    flags = "\n".join(f'    "move_{i}": {i < number},' for i in range(8))
    return f'"""The policy."""\n\nfrom curateevo.policy import api\n\nPARAMS = {{\n{flags}\n}}\n\n\ndef select(corpus, ctx):\n    return corpus.items()\n'


def cluster(mode: str, count: int, quote: str = "error: unknown tool get_wether") -> dict[str, Any]:
    evidence = [{"task": f"{FAMILIES[i % 6]}/1302{i}fd36264", "turn": i, "quote": quote} for i in range(5)]
    return {
        "mode": mode,
        "name": "",
        "failure_family": "grounded execution gap",
        "count": count,
        "share": round(count / 71, 4),
        "families": {"refund": count // 2, "shipping": count // 3, "account": count // 6},
        "evidence": evidence,
        "seen": "a tool that does not exist, or arguments that do not fit it",
        "hypothesis": "SFT rows break tool schemas",
        "curation_hint": "keep schema-valid rows only",
        "target_stage": "sft",
        "expected_metric": "success on the families named",
    }


def spec_of(root: Path, **changes: Any) -> EvolutionSpec:
    wire: dict[str, Any] = {
        "corpus": {"sources": [{"uri": "s3://agents/support/2026-06/*.jsonl", "format": "openai"}]},
        "model": {"base": "hf://Qwen/Qwen3-4B@main"},
        "evaluation": {"suites": [{"name": "toolworld"}], "splits": {"diag": 0.2, "sel": 0.4, "test": 0.4}},
        "rounds": {"max": 7},
        "proposer": {
            "type": "llm",
            "llm": {"baseURL": "https://llm.example.com/v1", "model": "example-large"},
        },
        "storage": {"uri": (root.resolve() / "store").as_uri()},
    }
    return EvolutionSpec.model_validate(wire | changes)


def families(*values: float) -> dict[str, float]:
    return dict(zip(FAMILIES, values, strict=True))


STAGES_DONE = {
    s: StageStatus(state=StageState.DONE, attempt=1, started_at=START + 60) for s in ("ingest", "floors", "seal")
}
STOPPED_AT_CURATE = (Stage.CURATE,)


def candidates() -> list[Candidate]:
    """Eight versions with every verdict; version 7 is the champion. Round 6 had no candidate."""
    clusters = [
        cluster("schema_violation", 38),
        cluster("invented_argument", 21, "order id A-1001"),
        cluster("stopped_early", 12, "Done!"),
    ]
    good, cheap = Focus.EFFECTIVENESS, Focus.EFFICIENCY
    improved = "J changed by +0.0930, at 90% confidence by more than +0.0514"
    return [
        Candidate(
            None,
            "",
            Verdict.COMMITTED,
            Reason.BASELINE,
            "the first version",
            None,
            families(0.2, 0.25, 0.3, 0.4, 0.45, 0.2),
            9200,
        ),
        Candidate(
            good,
            "filter-failures",
            Verdict.COMMITTED,
            Reason.IMPROVED,
            improved,
            0,
            families(0.3, 0.4, 0.35, 0.5, 0.55, 0.25),
            5200,
            (0.09, 0.05, 0.13),
            clusters=clusters,
        ),
        Candidate(
            cheap,
            "fold-repeats",
            Verdict.REVERTED,
            Reason.WORSE,
            "C fell by 0.0100; P changed by -0.0200, at 90% confidence by more than -0.0520, and -0.01 is the margin",
            1,
            families(0.28, 0.38, 0.33, 0.48, 0.53, 0.23),
            4100,
            (-0.02, -0.052, 0.012),
            grpo_skipped="every group had the same reward",
            clusters=clusters,
        ),
        Candidate(
            good,
            "balance-families",
            Verdict.REJECTED,
            Reason.POLICY_REJECTED,
            "leak (line 14): row 3 holds the prompt of dev task refund/13029fd3",
            1,
            phase=VersionPhase.REJECTED,
            stages=STOPPED_AT_CURATE,
            clusters=clusters[:1],
        ),
        Candidate(
            cheap,
            "prune-near",
            Verdict.FAILED,
            Reason.PROGRAM_FAILED,
            "train: out of memory on the third attempt",
            1,
            phase=VersionPhase.FAILED,
            stages=STOPPED_AT_CURATE,
        ),
        Candidate(
            good,
            "upsample-recoveries",
            Verdict.REVERTED,
            Reason.NOT_IMPROVED,
            "J changed by +0.0080, at 90% confidence by more than -0.0310",
            1,
            families(0.31, 0.4, 0.36, 0.5, 0.56, 0.27),
            6900,
            (0.008, -0.031, 0.047),
            clusters=clusters[1:],
        ),
        Candidate(
            good,
            "memory-of-tool-signatures",
            Verdict.COMMITTED,
            Reason.IMPROVED,
            improved,
            1,
            families(0.5, 0.55, 0.5, 0.6, 0.7, 0.3),
            5300,
            (0.13, 0.09, 0.17),
            clusters=clusters,
            notes=("longest SFT row: 343 tokens of 384",),
        ),
    ]


def complete(root: Path) -> RunFolder:
    """Seven versions and a round without a candidate, and the sealed test."""
    maker = Maker(root, spec_of(root))
    maker.ingest(unscored=5)
    maker.floors()
    champion: Champion | None = None
    for place, candidate in enumerate(candidates()):
        number = place if place < 6 else 7
        measured = maker.version(number, candidate)
        if candidate.verdict is Verdict.COMMITTED and measured and measured.p is not None and measured.j is not None:
            champion = Champion(
                number=number, policy_digest=f"sha256:{number:064d}", p=measured.p, c=measured.c, j=measured.j
            )
    _skip(maker, 6, "no proposal for Efficiency by llm: nothing more to try", parent=1)
    maker.seal(0, 7)
    return maker.evolution(
        EvolutionStatus(
            phase=EvolutionPhase.COMPLETE,
            reason=Reason.MAX_ROUNDS,
            message="7 rounds are done",
            round=7,
            decided=7,
            champion=champion,
            first_champion=0,
            counts=Counts(committed=3, reverted=2, rejected=1, failed=1),
            spent=Spent(gpu_seconds=9950, tokens=110_400, usd=1.26, calls=12),
            stages=STAGES_DONE,
            started_at=START,
            completed_at=START + 21_900,
        )
    )


def stopped_early(root: Path) -> RunFolder:
    """A champion, and a version whose evaluation was ended after a quarter of sel."""
    maker = Maker(root, spec_of(root))
    maker.ingest()
    first = Candidate(None, "", Verdict.COMMITTED, Reason.BASELINE, "the first version", success={"chat": 0.75})
    stop = EarlyStop(
        episodes=60,
        of_episodes=240,
        p_so_far=0.1234,
        p_at_most=0.6789,
        reason=Reason.NOT_IMPROVED,
        message="J changed by -0.0500",
    )
    worse = Candidate(
        Focus.EFFECTIVENESS,
        "filter",
        Verdict.REVERTED,
        Reason.NOT_IMPROVED,
        stopped_text(stop),
        parent=0,
        success={"chat": 0.1234},
        stopped=stop,
    )
    for number, candidate in enumerate((first, worse)):
        maker.version(number, candidate)
    return maker.evolution(
        EvolutionStatus(
            phase=EvolutionPhase.COMPLETE,
            reason=Reason.MAX_ROUNDS,
            message="1 round is done",
            round=1,
            decided=1,
            champion=Champion(number=0, policy_digest="sha256:0", p=0.75, c=0.7, j=0.54),
            first_champion=0,
            counts=Counts(committed=1, reverted=1),
            stages=STAGES_DONE,
            started_at=START,
            completed_at=START + 900,
        )
    )


def refused(root: Path) -> RunFolder:
    """A first version, and two rounds in which the model's answers were refused: the second ended the run."""
    maker = Maker(root, spec_of(root))
    maker.ingest()
    first = Candidate(None, "", Verdict.COMMITTED, Reason.BASELINE, "the first version", success={"chat": 0.75})
    maker.version(0, first)
    _skip(maker, 1, "no proposal for Effectiveness by llm: refused 3 times, last: no such line", parent=0)
    return maker.evolution(
        EvolutionStatus(
            phase=EvolutionPhase.COMPLETE,
            reason=Reason.NO_PROPOSAL,
            message="no proposal for Efficiency by llm: refused 3 times, last: as version 1 was",
            round=2,
            decided=1,
            champion=Champion(number=0, policy_digest="sha256:0", p=0.75, c=0.7, j=0.54),
            first_champion=0,
            counts=Counts(committed=1),
            stages=STAGES_DONE,
            started_at=START,
            completed_at=START + 900,
        )
    )


def _skip(maker: Maker, number: int, message: str, parent: int) -> None:
    record = DecisionRecord(
        number=number,
        verdict=Verdict.REVERTED,
        reason=Reason.NO_PROPOSAL.value,
        message=message,
        policy_digest="",
        policy_key="",
        parent=parent,
        champion_before=parent,
    )
    maker.store.put(decision_key(maker.uid, number), json.dumps(record.to_wire()).encode())


def failed_model(root: Path) -> RunFolder:
    """The base model could not be found, so that the floors failed and nothing was made."""
    maker = Maker(root, spec_of(root))
    maker.ingest()
    stages = {
        "ingest": STAGES_DONE["ingest"],
        "floors": StageStatus(
            state=StageState.FAILED,
            attempt=2,
            started_at=START + 90,
            application_failures=2,
            reason=Reason.CONTRACT_BROKEN,
            message="no model",
        ),
    }
    text = "hf://Qwen/Qwen3-4B@main: no such model, or no access to it\n  hint: look at spec.model.base, or set tokenSecretRef"
    return maker.evolution(
        EvolutionStatus(
            phase=EvolutionPhase.FAILED,
            reason=Reason.CONTRACT_BROKEN,
            message=text,
            stages=stages,
            started_at=START,
            completed_at=START + 140,
        )
    )


def failed_baseline(root: Path) -> RunFolder:
    """Version 0 broke its contract. Such an end has no time of its own."""
    maker = Maker(root, spec_of(root))
    maker.ingest()
    maker.floors()
    text = "rows (line 40): an SFT row has no assistant turn"
    rejected = Candidate(
        None, "", Verdict.REJECTED, Reason.POLICY_REJECTED, text, phase=VersionPhase.REJECTED, stages=()
    )
    maker.version(0, rejected)
    status = EvolutionStatus(
        phase=EvolutionPhase.FAILED,
        reason=Reason.BASELINE_FAILED,
        message=f"version 0: {text}",
        decided=0,
        counts=Counts(rejected=1),
        stages=STAGES_DONE,
        started_at=START,
        conditions=(
            Condition(type="Ready", status="False", reason="BaselineFailed", last_transition_time=START + 200),
        ),
    )
    return maker.evolution(status)


def interrupted(root: Path) -> RunFolder:
    """Version 0 committed, version 1 in training."""
    maker = Maker(root, spec_of(root))
    maker.ingest()
    maker.floors()
    first, second = candidates()[:2]
    measured = maker.version(0, first)
    assert measured is not None
    second.verdict, second.reason, second.message, second.success = None, None, "", None
    second.phase, second.stages = VersionPhase.TRAINING, (Stage.CURATE, Stage.TRAIN)
    maker.version(1, second)
    champion = Champion(number=0, policy_digest="sha256:0", p=measured.p, c=measured.c, j=measured.j)
    return maker.evolution(
        EvolutionStatus(
            phase=EvolutionPhase.TESTING,
            reason=Reason.RUNNING,
            message="version 1: training",
            round=1,
            decided=0,
            champion=champion,
            first_champion=0,
            counts=Counts(committed=1),
            stages=STAGES_DONE,
            started_at=START,
        )
    )


def floors_only(root: Path) -> RunFolder:
    maker = Maker(root, spec_of(root))
    maker.ingest()
    maker.floors()
    text = "spec.policy.initial is not stored yet"
    status = EvolutionStatus(
        phase=EvolutionPhase.TESTING,
        reason=Reason.AWAITING_POLICY,
        message=text,
        stages=STAGES_DONE,
        started_at=START,
    )
    return maker.evolution(status)


def fresh(root: Path) -> RunFolder:
    """Nothing but the spec."""
    return Maker(root, spec_of(root)).evolution(EvolutionStatus())


def hostile(root: Path) -> RunFolder:
    """Every text that a policy, a corpus or a model may write tries to get out of its place, and is far too long."""
    spec = spec_of(
        root,
        corpus={"sources": [{"uri": f"/data/{BREAKOUT}"}, *({"uri": LONG[:1000]} for _ in range(40))]},
        model={"base": f"hf://{BREAKOUT}"},
    )
    maker = Maker(root, spec)
    maker.ingest({BREAKOUT: 3000, LONG: 20, **{f"f{i}": i for i in range(100)}})
    maker.floors()
    first = candidates()[0]
    first.source = f"# {BREAKOUT}\n" + "x = 1\n" * 300
    measured = maker.version(0, first)
    assert measured is not None
    for number in range(1, 9):
        evil = Candidate(
            Focus.COMBINED,
            f"{BREAKOUT} {LONG}",
            Verdict.REVERTED,
            Reason.NOT_IMPROVED,
            f"{BREAKOUT} {INVISIBLE.encode('utf-8', 'replace').decode()} {LONG}",
            0,
            {f"{BREAKOUT}{i}{LONG[:300]}": (i % 7) / 7 for i in range(90)},
            delta=(0.0, -0.1, 0.1),
            hypothesis=f"{BREAKOUT} {INVISIBLE} {LONG}",
            expected=f"{BREAKOUT} {LONG}",
            clusters=[cluster(BREAKOUT, 5, f"{INVISIBLE}{BREAKOUT}{LONG}") for _ in range(50)],
            notes=tuple(f"{BREAKOUT} {LONG}" for _ in range(60)),
            grpo_skipped=f"{BREAKOUT} {LONG}",
            source="\n".join(f"# {i} {BREAKOUT} {'<' * 900}" for i in range(2000 + number)),
        )
        maker.version(number, evil)
    champion = Champion(number=0, policy_digest="sha256:0", p=measured.p, c=measured.c, j=measured.j)
    return maker.evolution(
        EvolutionStatus(
            phase=EvolutionPhase.COMPLETE,
            reason=Reason.PATIENCE,
            message=f"{BREAKOUT} {LONG}"[:2048],
            decided=8,
            champion=champion,
            first_champion=0,
            counts=Counts(committed=1, reverted=8),
            stages=STAGES_DONE,
            started_at=START,
            completed_at=START + 5,
        )
    )


def odd(root: Path) -> RunFolder:
    """Files of the wrong shape, and numbers that are none."""
    maker = Maker(root, spec_of(root))
    maker.artifact(
        Stage.INGEST,
        None,
        {
            "profile.json": {"families": [1], "success": None, "turns": "many", "turn_flags": 3},
            "leaked.jsonl": '7\n{"reason": 3}\n{"file": "a:1", "reason": "who knows"}\n',
        },
        IngestSummary(trajectories=0, turns=0, successes=0, set_aside=0, leaked=0),
    )
    lost = candidates()[1]
    lost.clusters = [
        {"mode": None, "count": "x", "evidence": [{"quote": 7}, "no object"], "families": [1]},
        "no object",
    ]
    lost.parent, lost.verdict, lost.reason = 0, None, None
    maker.version(1, lost)
    maker.store.put(decision_key(maker.uid, 1), b"{not json")
    (root / "store" / attempt_prefix(maker.uid, Stage.TRAIN, 1, 1) / "manifest.json").write_text("{}")
    champion = Champion(number=9, policy_digest="sha256:0", p=0.1, c=0.5, j=-0.05)
    return maker.evolution(
        EvolutionStatus(
            phase=EvolutionPhase.SUSPENDED, champion=champion, stages=STAGES_DONE, started_at=2.5e11, decided=3
        )
    )
