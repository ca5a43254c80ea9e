"""The shell of one machine: observe, plan, apply, save, announce. No decision is made here."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never
from urllib.parse import urlparse

from curateevo.api.errors import Conflict, ContractBroken, Denied, SpecInvalid
from curateevo.api.evolution import (
    CurationEvolution,
    EvolutionPhase,
    PolicyVersion,
    Reason,
    StageState,
    StageStatus,
)
from curateevo.api.spec import EvolutionSpec
from curateevo.api.stage import StoreRef
from curateevo.evolution.decision import (
    Action,
    CreateVersion,
    DeleteArtifacts,
    DeleteEvolution,
    EvolutionSeen,
    MoveChampion,
    Notice,
    Release,
    StartJob,
    StopJob,
    WriteDecision,
)
from curateevo.evolution.plan_evolution import TERMINAL, plan_evolution
from curateevo.evolution.plan_version import in_force, plan_version
from curateevo.evolution.requests import Identity
from curateevo.local.display import Display
from curateevo.local.jobs import LocalJobs
from curateevo.local.objects import JOBS, RunFolder, object_meta
from curateevo.loop.effects import apply_to_store, store_initial_policy
from curateevo.loop.observe import Observer
from curateevo.policy.builtin import source_of
from curateevo.store.connect import connect
from curateevo.store.protocol import Store

TICK_SECONDS = 0.1


def run_evolution(folder: RunFolder, evolution: CurationEvolution, display: Display) -> CurationEvolution:
    """Run, or go on with, an evolution until it ends, waits for a person, or is interrupted.

    Raises Denied (disk, credentials) with what an admin must do; the run can be resumed afterwards.
    """
    check_runs_here(evolution.spec)
    store = connect(StoreRef(uri=evolution.spec.storage.uri, endpoint=evolution.spec.storage.endpoint))
    store.check()
    jobs = LocalJobs(folder.root / JOBS, display.progress)
    jobs.clear_orphans()
    shell = Shell(folder, evolution, store, jobs, display)
    try:
        store_initial_policy(store, shell.who.uid, initial_policy(evolution.spec))
        return shell.run()
    finally:
        jobs.stop_all()


def check_runs_here(spec: EvolutionSpec) -> None:
    """Refuse early what one machine can't do. Raises SpecInvalid."""
    if spec.policy.initial.config_map_key_ref is not None:
        raise SpecInvalid(
            "spec.policy.initial.configMapKeyRef: there are no ConfigMaps on one machine",
            "use builtin or uri",
        )


@dataclass(slots=True)
class Shell:
    folder: RunFolder
    evolution: CurationEvolution
    store: Store
    jobs: LocalJobs
    display: Display
    observer: Observer = field(init=False)
    who: Identity = field(init=False)

    def __post_init__(self) -> None:
        uid = self.evolution.metadata.uid
        assert uid is not None
        self.who = Identity(self.evolution.metadata.name, uid)
        self.observer = Observer(self.store, self.who.name, uid)

    def run(self) -> CurationEvolution:
        self._retry_now()
        while True:
            wake = self.tick()
            self.display.show(self.evolution, self.folder.versions())
            if wake is None:
                return self.evolution
            self._sleep(wake)

    def tick(self) -> float | None:
        """One pass over the evolution and its versions; seconds until the next, or None when there is nothing left."""
        versions = self.folder.versions()
        seen = self.observer.evolution(self.evolution, versions, self.jobs)
        decision = plan_evolution(
            self.who,
            self.evolution.spec,
            self.evolution.status,
            seen,
            time.time(),
            self.evolution.metadata.generation,
        )
        changed = decision.status != self.evolution.status or bool(decision.actions)
        for action in decision.actions:
            self._apply(action)
        self._save_status(decision.status)
        self._announce(decision.notices)
        wakes = [decision.wake_in]
        for version in self.folder.versions().values():
            moved, wake = self._tick_version(version, seen)
            changed |= moved
            wakes.append(wake)
        self._raise_denied()
        if changed:
            return 0.0
        if self.evolution.status.phase in TERMINAL or self._waits_for_a_person():
            return None
        pending = [w for w in wakes if w is not None]
        return min(pending, default=60.0)

    def _tick_version(self, version: PolicyVersion, seen: EvolutionSeen) -> tuple[bool, float | None]:
        stages = self.observer.version_stages(self.evolution, version, seen, self.jobs)
        spec = in_force(version.spec, self.evolution.spec)
        decision = plan_version(self.who, spec, version.status, stages, time.time())
        changed = decision.status != version.status or bool(decision.actions)
        for action in decision.actions:
            self._apply(action)
        if decision.status != version.status:
            self.folder.save_version(version.model_copy(update={"status": decision.status}))
        self._announce(decision.notices)
        return changed, decision.wake_in

    def _apply(self, action: Action) -> None:
        match action:
            case StartJob():
                self.jobs.start(action.name, action.request)
            case StopJob():
                self.jobs.stop(action.name)
            case CreateVersion():
                labels = {
                    "curateevo.io/evolution": self.who.name,
                    "curateevo.io/version": str(action.spec.number),
                }
                if action.spec.number not in self.folder.versions():
                    self.folder.save_version(PolicyVersion(metadata=object_meta(action.name, labels), spec=action.spec))
            case WriteDecision() | MoveChampion() | DeleteArtifacts():
                try:
                    apply_to_store(self.store, self.who.uid, action)
                except Conflict:
                    self.display.line("the champion was moved by another writer; looking again")
            case Release() | DeleteEvolution():
                pass  # a run's folder is the user's to remove
            case _:
                assert_never(action)

    def _save_status(self, status: object) -> None:
        if status != self.evolution.status:
            self.evolution = self.evolution.model_copy(update={"status": status})
            self.folder.save_evolution(self.evolution)

    def _announce(self, notices: tuple[Notice, ...]) -> None:
        for notice in notices:
            self.display.notice(notice)

    def _retry_now(self) -> None:
        """A person has started the loop again: what was waiting for its next attempt waits no longer."""
        status = self.evolution.status
        self._save_status(status.model_copy(update={"stages": {k: _ready(s) for k, s in status.stages.items()}}))
        for version in self.folder.versions().values():
            stages = {k: _ready(s) for k, s in version.status.stages.items()}
            if stages != version.status.stages:
                update = {"status": version.status.model_copy(update={"stages": stages})}
                self.folder.save_version(version.model_copy(update=update))

    def _raise_denied(self) -> None:
        """On one machine the admin sits in front of it: say so at once instead of trying again slowly."""
        versions = self.folder.versions().values()
        stages = [
            *self.evolution.status.stages.values(),
            *(s for v in versions for s in v.status.stages.values()),
        ]
        for stage in stages:
            if stage.state is StageState.WAITING and stage.reason is Reason.DENIED:
                what = stage.message.partition("\n")[0]
                raise Denied(what, "mend it and run the same command again: nothing is lost")

    def _waits_for_a_person(self) -> bool:
        return self.evolution.status.reason is Reason.AWAITING_POLICY and not self.jobs.active

    def _sleep(self, seconds: float) -> None:
        """Until the wake-up, or until a job ends."""
        deadline = time.monotonic() + seconds
        busy = self.jobs.active
        while (left := deadline - time.monotonic()) > 0 and self.jobs.active == busy:
            time.sleep(min(TICK_SECONDS, left))
            self.display.refresh()


def retry_failed(folder: RunFolder, evolution: CurationEvolution) -> CurationEvolution:
    """A failed evolution made ready to try its failed stages again, with new attempts."""
    if evolution.status.phase is not EvolutionPhase.FAILED:
        return evolution
    stages = {k: _ready(s, failed=True) for k, s in evolution.status.stages.items()}
    update = {
        "phase": EvolutionPhase.PENDING,
        "reason": None,
        "message": "",
        "completed_at": None,
        "stages": stages,
    }
    renewed = evolution.model_copy(update={"status": evolution.status.model_copy(update=update)})
    folder.save_evolution(renewed)
    return renewed


def _ready(stage: StageStatus, failed: bool = False) -> StageStatus:
    if stage.state is StageState.WAITING or (failed and stage.state is StageState.FAILED):
        return stage.model_copy(
            update={
                "state": StageState.WAITING,
                "retry_at": None,
                "infrastructure_failures": 0,
                "application_failures": 0,
                "reason": None,
            }
        )
    return stage


def initial_policy(spec: EvolutionSpec) -> str:
    """The source of version 0's policy. Raises ContractBroken when it can't be read."""
    initial = spec.policy.initial
    if initial.builtin is not None:
        return source_of(initial.builtin)
    path = Path(urlparse(initial.uri or "").path)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ContractBroken(f"spec.policy.initial.uri: {path}: {error}", "name a readable Python file") from error
