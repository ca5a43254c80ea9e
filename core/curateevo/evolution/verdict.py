"""The verdict on a version that has ended, as the record that is written once."""

from __future__ import annotations

from curateevo.api.evolution import Reason, Verdict, VersionPhase
from curateevo.api.spec import EvolutionSpec
from curateevo.api.stage import DecisionRecord
from curateevo.evolution.acceptance import Comparison, Measured, compare
from curateevo.evolution.decision import EvolutionSeen, VersionSeen
from curateevo.evolution.requests import focus_of
from curateevo.evolution.stopping import stopped_text


def judge(spec: EvolutionSpec, seen: EvolutionSeen, version: VersionSeen) -> DecisionRecord | None:
    """The decision record of an ended version; None while the champion that it is to be compared with is not seen. The
    rule is that of the spec that its round was started with."""
    spec = version.spec or spec
    before = seen.champion.pointer if seen.champion else None
    base = DecisionRecord(
        number=version.number,
        verdict=Verdict.FAILED,
        reason=(version.reason or Reason.METRICS_UNAVAILABLE).value,
        message=version.message[:2048],
        policy_digest=version.policy_digest,
        policy_key=version.policy_key,
        parent=before.number if before else None,
        champion_before=before.number if before else None,
        resources_digest=version.curate.digest if version.curate else None,
        model_digest=version.train.digest if version.train else None,
    )
    if version.phase is VersionPhase.REJECTED:
        return base.model_copy(
            update={"verdict": Verdict.REJECTED, "reason": (version.reason or Reason.POLICY_REJECTED).value}
        )
    measured = version.measurement
    if version.phase is VersionPhase.MEASURED and measured is not None and measured.p is None and measured.stopped:
        return base.model_copy(
            update={
                "verdict": Verdict.REVERTED,
                "reason": measured.stopped.reason.value,
                "message": stopped_text(measured.stopped),
                "c": measured.c,
            }
        )
    if version.phase is not VersionPhase.MEASURED or measured is None or version.scores is None:
        return base
    base = base.model_copy(update={"p": measured.p, "c": measured.c, "j": measured.j})
    if before is None:
        return base.model_copy(
            update={
                "verdict": Verdict.COMMITTED,
                "reason": Reason.BASELINE.value,
                "message": "the first version",
            }
        )
    champion = seen.versions.get(before.number)
    if champion is None or champion.scores is None or champion.measurement is None:
        return None
    return _judged(spec, base, champion, version)


def _judged(spec: EvolutionSpec, base: DecisionRecord, champion: VersionSeen, version: VersionSeen) -> DecisionRecord:
    assert champion.scores is not None and champion.measurement is not None
    assert version.scores is not None and version.measurement is not None
    old, new = (
        Measured(champion.scores, champion.measurement.c),
        Measured(version.scores, version.measurement.c),
    )
    try:
        found: Comparison = compare(
            old,
            new,
            focus_of(spec, version.number),
            spec.acceptance,
            spec.objective.lambda_,
            seed=version.number,
        )
    except ValueError as error:
        return base.model_copy(update={"reason": Reason.METRICS_UNAVAILABLE.value, "message": str(error)})
    return base.model_copy(
        update={
            "verdict": Verdict.COMMITTED if found.commit else Verdict.REVERTED,
            "reason": found.reason.value,
            "message": found.message,
            "delta_p": found.delta_p,
            "delta_j": found.delta_j,
            "lower": found.lower,
            "upper": found.upper,
            "tasks": found.tasks,
        }
    )
