"""One pass over one evolution: look, plan, apply, save, announce. No decision about the domain is made here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import assert_never

from curateevo.api.base import JsonObject, Model, digest_of
from curateevo.api.errors import Conflict, ContractBroken, CurateEvoError, Denied, SpecInvalid, Transient
from curateevo.api.evolution import (
    CurationEvolution,
    EvolutionStatus,
    PolicyVersion,
    Reason,
    Stage,
    StageState,
    StageStatus,
)
from curateevo.api.live import read_evolution, read_version
from curateevo.api.rules import changed_fixed
from curateevo.api.spec import EvolutionSpec
from curateevo.evolution.conditions import with_fault
from curateevo.evolution.decision import (
    Action,
    CreateVersion,
    Decision,
    DeleteArtifacts,
    DeleteEvolution,
    EvolutionSeen,
    MoveChampion,
    Notice,
    Release,
    S,
    StageSeen,
    StartJob,
    StopJob,
    VersionStagesSeen,
    WriteDecision,
)
from curateevo.evolution.plan_evolution import TERMINAL as OVER
from curateevo.evolution.plan_evolution import plan_evolution, plan_rest
from curateevo.evolution.plan_version import STAGES, TERMINAL, in_force, plan_version
from curateevo.evolution.requests import Identity
from curateevo.loop.effects import apply_to_store, store_initial_policy
from curateevo.loop.observe import Observer
from curateevo.policy.builtin import source_of
from curateevo.store.protocol import Store
from curateevo_operator.adapters import jobs as adapter
from curateevo_operator.adapters.events import announce
from curateevo_operator.adapters.jobs import JobsSeen
from curateevo_operator.adapters.kubernetes import (
    CLAIM,
    CONFIG_MAP,
    EVENT,
    EVOLUTION,
    JOB,
    NETWORK_POLICY,
    POD,
    SERVICE,
    TRAIN_JOB,
    TRAIN_RUNTIME,
    VERSION,
    Cluster,
    kind_of,
)
from curateevo_operator.adapters.stores import Stores
from curateevo_operator.metrics import Metrics
from curateevo_operator.render import labels
from curateevo_operator.render.network import render_network
from curateevo_operator.render.settings import Owner, Parent
from curateevo_operator.render.stage import render_stage
from curateevo_operator.settings import Settings
from curateevo_operator.workers import Key

logger = logging.getLogger(__name__)
FINALIZER = "curateevo.io/cleanup"
PAUSED = "curateevo.io/paused"
RENDERED = "curateevo.io/rendered"
"""Annotation with the digest of what a NetworkPolicy was rendered as: the same is not written again."""
FAULT_SECONDS = 60.0
"""How soon a pass is tried again after a fault that somebody must mend; a change of the object wakes it earlier."""
DELETING_SECONDS = 1.0
STARTED_SECONDS = 2.0
"""How soon a job is looked for that was started or stopped, should its event not come."""
PLANS = 8
"""How often one pass may plan over what it read of the cluster."""
StagesSeen = Mapping[Stage, StageSeen]


class NameTaken(CurateEvoError):
    """An object that we have to make has the name of somebody else's."""


@dataclass(slots=True)
class _Pass:
    """What one pass works on. `live` is renewed by each save."""

    live: JsonObject
    evolution: CurationEvolution
    who: Identity
    parent: Parent
    jobs: JobsSeen
    versions_live: dict[int, JsonObject]
    versions: dict[int, PolicyVersion]
    moved: bool = False
    """Whether a plan changed anything: another may have more to do now."""
    stale: bool = False
    """Whether jobs or versions were made or stopped since they were read."""
    wakes: list[float] = field(default_factory=list)

    def wake(self, seconds: float | None) -> None:
        if seconds is not None:
            self.wakes.append(seconds)


@dataclass(slots=True)
class Reconciler:
    cluster: Cluster
    stores: Stores
    settings: Settings
    metrics: Metrics
    clock: Callable[[], float] = time.time
    _observers: dict[str, Observer] = field(default_factory=dict)
    _networked: dict[str, int] = field(default_factory=dict)
    """The generation of each evolution whose NetworkPolicies were applied by this process."""
    _tidied: set[str] = field(default_factory=set)
    """Main Jobs whose Services and claims were deleted by this process."""

    async def __call__(self, key: Key) -> float | None:
        """One pass. Seconds until the next at the latest; None when the object is gone."""
        live = await self.cluster.get(EVOLUTION, key.namespace, key.name)
        if live is None:
            self.metrics.forget(*key)
            return None
        if (live["metadata"].get("annotations") or {}).get(PAUSED) == "true":
            return self.settings.resync_seconds
        try:
            if adapter.terminating(live):
                return await self._finalize(live)
            live = await self._with_finalizer(live)
            return await self._pass(live)
        except SpecInvalid as error:
            return await self._fault(live, "Ready", Reason.SPEC_INVALID, error)
        except NameTaken as error:
            return await self._fault(live, "Ready", Reason.ALREADY_EXISTS, error)

    async def _pass(self, live: JsonObject) -> float:
        work = await self._look(live)
        if _over(work) and not self._untidy(work):
            return await self._wait_for_the_end_of_time(work)
        try:
            store = await self.stores.open(work.parent.namespace, work.evolution.spec.storage)
            await self._store_initial_policy(work, store)
        except (Transient, Denied) as error:
            return await self._store_fault(live, error)
        await self._apply_network(work)
        for _ in range(PLANS):
            if (wait := await self._plan(work, store)) is not None:
                return wait
            if work.stale or not work.moved:
                break
        await self._tidy(work)
        self.metrics.show(work.evolution, work.versions.values(), self.clock())
        if work.stale:
            work.wake(STARTED_SECONDS)
        elif work.moved:
            work.wake(0.0)
        return min(work.wakes, default=self.settings.resync_seconds)

    async def _plan(self, work: _Pass, store: Store) -> float | None:
        """Look at the store and let everything plan once. For a fault, the seconds until the next pass."""
        work.moved, work.wakes = False, []
        try:
            seen, stages = await asyncio.to_thread(_observe, self._observer(work, store), work)
        except (Transient, Denied) as error:
            return await self._store_fault(work.live, error)
        try:
            # Versions first: while one can't be helped, the evolution keeps the conditions that say so.
            for number, found in stages.items():
                await self._tick_version(work, work.versions[number], found, store)
            await self._tick_evolution(work, seen, store)
        except (Denied, ContractBroken) as error:
            reason = Reason.DENIED if isinstance(error, Denied) else Reason.SPEC_INVALID
            return await self._fault(work.live, "Ready", reason, error)
        return None

    async def _look(self, live: JsonObject) -> _Pass:
        """Everything of an evolution on the cluster, read now."""
        evolution = read_evolution(live)
        meta = evolution.metadata
        assert meta.uid is not None
        selector = labels.selector(meta.uid)
        found = await self.cluster.find(VERSION, meta.namespace, selector)
        versions_live = {int(v["spec"]["number"]): v for v in found if not adapter.terminating(v)}
        versions = {n: read_version(v) for n, v in sorted(versions_live.items())}
        if 0 in versions and (changed := changed_fixed(versions[0].spec.evolution_spec, evolution.spec)):
            raise SpecInvalid(f"{changed[0]}: can't change once the run has begun", "make another CurationEvolution")
        specs = [evolution.spec, *(v.spec.evolution_spec for v in versions.values() if not _settled(v))]
        gangs = any(s.training.engine == "TrainJob" for s in specs)
        jobs = await self._list_jobs(meta.namespace, selector, gangs)
        who, parent = Identity(meta.name, meta.uid), Parent(meta.name, meta.namespace, meta.uid)
        return _Pass(live, evolution, who, parent, jobs, versions_live, versions)

    async def _wait_for_the_end_of_time(self, work: _Pass) -> float:
        """Nothing is left to do for an evolution that is over, but to delete it when its time has come. Many are over:
        the store is not asked."""
        self.metrics.show(work.evolution, work.versions.values(), self.clock())
        self._observers.pop(work.who.uid, None)
        decision = plan_rest(work.evolution.spec, work.evolution.status, (), self.clock())
        if decision.actions:
            await self.cluster.delete(work.live)
            return DELETING_SECONDS
        return self.settings.resync_seconds if decision.wake_in is None else decision.wake_in

    async def _find_jobs(self, namespace: str, selector: str, gangs: bool) -> list[JsonObject]:
        """`gangs`: TrainJobs as well. Where none can be, the kind may not be there."""
        kinds = (JOB, TRAIN_JOB) if gangs else (JOB,)
        return [job for kind in kinds for job in await self.cluster.find(kind, namespace, selector)]

    async def _list_jobs(self, namespace: str, selector: str, gangs: bool) -> JobsSeen:
        found = await self._find_jobs(namespace, selector, gangs)
        open_ = [j for j in found if not adapter.terminating(j)]
        pods = await self.cluster.find(POD, namespace, selector) if open_ else []
        words = {j["metadata"]["name"]: await self._why_no_pod(j) for j in adapter.without_pods(open_, pods)}
        return adapter.group_jobs(found, pods, words)

    async def _why_no_pod(self, job: JsonObject) -> str:
        """What the Job controller said when quota or admission refused a pod."""
        meta = job["metadata"]
        fields = f"involvedObject.uid={meta['uid']},reason=FailedCreate"
        events = await self.cluster.find(EVENT, meta["namespace"], fields=fields)
        newest = max(events, key=lambda e: str(e.get("lastTimestamp") or ""), default=None)
        return str(newest["message"]) if newest else ""

    async def _tick_evolution(self, work: _Pass, seen: EvolutionSeen, store: Store) -> None:
        before = work.evolution.status
        generation = work.evolution.metadata.generation
        decision = plan_evolution(work.who, work.evolution.spec, before, seen, self.clock(), generation)
        work.live = await self._carry_out(work, work.live, before, decision, seen.stages, store)
        work.evolution = work.evolution.model_copy(update={"status": decision.status})

    async def _tick_version(self, work: _Pass, version: PolicyVersion, stages: VersionStagesSeen, store: Store) -> None:
        number = version.spec.number
        spec = in_force(version.spec, work.evolution.spec)
        decision = plan_version(work.who, spec, version.status, stages, self.clock())
        live = work.versions_live[number]
        work.versions_live[number] = await self._carry_out(work, live, version.status, decision, stages.stages, store)
        work.versions[number] = version.model_copy(update={"status": decision.status})

    async def _carry_out(
        self, work: _Pass, live: JsonObject, before: S, decision: Decision[S], seen: StagesSeen, store: Store
    ) -> JsonObject:
        """Apply in order, save once, then announce. Returns the object as it is saved now."""
        for action in decision.actions:
            await self._apply(work, action, store)
        work.wake(decision.wake_in)
        work.moved |= bool(decision.actions) or decision.status != before
        if decision.status != before:
            live = await self._save(live, decision.status)
            self._count_stages(work, before.stages, decision.status.stages, seen)
        for notice in decision.notices:
            await announce(self.cluster, live, notice, self.clock())
        return live

    async def _apply(self, work: _Pass, action: Action, store: Store) -> None:
        _log(work, action)
        match action:
            case StartJob():
                owner, spec = self._owner(work, action)
                for manifest in render_stage(
                    self.settings.render, work.parent, owner, spec, action.name, action.request
                ):
                    await self._create(manifest, work.parent.uid)
                work.stale = True
            case StopJob():
                await self._stop(work, action.name)
                work.stale = True
            case CreateVersion():
                await self._create(_version_manifest(work, action), work.parent.uid)
                work.stale = True
                work.wake(0.0)  # nobody watches versions
            case WriteDecision() | MoveChampion() | DeleteArtifacts():
                await asyncio.to_thread(apply_to_store, store, work.who.uid, action)
            case DeleteEvolution():
                await self.cluster.delete(work.live)
            case Release():
                pass  # only planned for a deletion, which is not planned here
            case _:
                assert_never(action)

    def _owner(self, work: _Pass, action: StartJob) -> tuple[Owner, EvolutionSpec]:
        """Whose child a job is, and the spec that it runs under."""
        number = action.request.version
        if action.request.stage in STAGES and number is not None:
            spec = in_force(work.versions[number].spec, work.evolution.spec).evolution_spec
            return _owner_of(work.versions_live[number]), spec
        return _owner_of(work.live), work.evolution.spec

    async def _create(self, manifest: JsonObject, uid: str) -> None:
        """Create, unless it is there. Raises NameTaken when the name is somebody else's."""
        try:
            await self.cluster.create(manifest)
        except Conflict as error:
            kind, meta = kind_of(manifest), manifest["metadata"]
            there = await self.cluster.get(kind, meta["namespace"], meta["name"])
            if there is not None and adapter.label(there, labels.EVOLUTION_UID) != uid:
                raise NameTaken(
                    f"{kind.kind} {meta['name']} is there already and belongs to something else",
                    "remove it, or choose another name for this evolution",
                ) from error

    async def _stop(self, work: _Pass, name: str) -> None:
        """Delete an attempt: its main Job, its servers, their Services."""
        group = work.jobs.groups.get(name)
        for job in group.jobs if group is not None else ():
            if not adapter.terminating(job):
                await self.cluster.delete(job)
        await self._delete_beside(work, name)

    async def _delete_beside(self, work: _Pass, name: str) -> None:
        """What an attempt has beside Jobs."""
        selector = f"{labels.selector(work.parent.uid)},{labels.JOB}={name}"
        for kind in (SERVICE, CLAIM, TRAIN_RUNTIME):
            for live in await self.cluster.find(kind, work.parent.namespace, selector):
                await self.cluster.delete(live)

    async def _tidy(self, work: _Pass) -> None:
        """Free what attempts that have ended still hold: a server keeps a GPU, a claim a disk."""
        for job in work.jobs.leftovers:
            await self.cluster.delete(job)
        for name, uid in self._untidy(work).items():
            await self._delete_beside(work, name)
            self._tidied.add(uid)

    def _untidy(self, work: _Pass) -> dict[str, str]:
        """Attempts that have ended and may still hold something, with the uid of their main Job."""
        over = {g.name: g.main for g in work.jobs.groups.values() if g.over and g.main is not None}
        held = {n: j["metadata"]["uid"] for n, j in over.items() if work.jobs.groups[n].beside or j["kind"] != JOB.kind}
        return {name: uid for name, uid in held.items() if uid not in self._tidied}

    async def _finalize(self, live: JsonObject) -> float | None:
        """The object is being deleted: jobs end first, then artifacts go if the spec says so, then the object."""
        meta = live["metadata"]
        if FINALIZER not in (meta.get("finalizers") or ()):
            return None
        gangs = (live.get("spec") or {}).get("training", {}).get("engine") == "TrainJob"
        jobs = await self._find_jobs(meta["namespace"], labels.selector(meta["uid"]), gangs)
        for job in jobs:
            if not adapter.terminating(job):
                await self.cluster.delete(job)
        if jobs:
            return DELETING_SECONDS
        try:
            evolution = read_evolution(live)
        except SpecInvalid:
            evolution = None  # it never ran: there is nothing in the store
        if evolution is not None:
            who, seen = Identity(meta["name"], meta["uid"]), EvolutionSeen(deleting=True)
            decision = plan_evolution(who, evolution.spec, evolution.status, seen, self.clock())
            for action in decision.actions:
                if isinstance(action, DeleteArtifacts):
                    await self._delete_artifacts(live, evolution, action)
        await self.cluster.set_finalizers(live, [f for f in meta["finalizers"] if f != FINALIZER])
        self.metrics.forget(meta["namespace"], meta["name"])
        self._observers.pop(meta["uid"], None)
        self._networked.pop(meta["uid"], None)
        return None

    async def _delete_artifacts(self, live: JsonObject, evolution: CurationEvolution, action: DeleteArtifacts) -> None:
        try:
            store = await self.stores.reopen(evolution.metadata.namespace, evolution.spec.storage)
            await asyncio.to_thread(apply_to_store, store, str(evolution.metadata.uid), action)
        except (Transient, Denied) as error:
            error.hint = error.hint or "set spec.reclaimPolicy to Retain to let the object go without its artifacts"
            await self._store_fault(live, error)
            raise

    async def _with_finalizer(self, live: JsonObject) -> JsonObject:
        finalizers = live["metadata"].get("finalizers") or []
        if FINALIZER in finalizers:
            return live
        return await self.cluster.set_finalizers(live, [*finalizers, FINALIZER]) or live

    async def _store_initial_policy(self, work: _Pass, store: Store) -> None:
        if work.versions:
            return
        source = await self._initial_policy(work.evolution)
        try:
            await asyncio.to_thread(store_initial_policy, store, work.who.uid, source)
        except ContractBroken as error:
            raise SpecInvalid(f"spec.policy.initial: {error.message}", error.hint) from error

    async def _initial_policy(self, evolution: CurationEvolution) -> str:
        initial, namespace = evolution.spec.policy.initial, evolution.metadata.namespace
        if initial.builtin is not None:
            return source_of(initial.builtin)
        if (ref := initial.config_map_key_ref) is None:
            raise SpecInvalid("spec.policy.initial.uri: a cluster has no files", "put it into a ConfigMap")
        found = await self.cluster.get(CONFIG_MAP, namespace, ref.name)
        source = ((found or {}).get("data") or {}).get(ref.key)
        if source is None:
            raise SpecInvalid(
                f"spec.policy.initial.configMapKeyRef: no key {ref.key} in a ConfigMap {ref.name} of {namespace}",
                f"kubectl create configmap {ref.name} --from-file={ref.key}",
            )
        return str(source)

    async def _apply_network(self, work: _Pass) -> None:
        generation = work.evolution.metadata.generation
        if self._networked.get(work.who.uid) == generation:
            return
        there = await self.cluster.find(NETWORK_POLICY, work.parent.namespace, labels.selector(work.parent.uid))
        rendered = {p["metadata"]["name"]: (p["metadata"].get("annotations") or {}).get(RENDERED) for p in there}
        for manifest in render_network(self.settings.render, work.parent, _owner_of(work.live), work.evolution.spec):
            digest = digest_of(manifest)
            if rendered.get(manifest["metadata"]["name"]) != digest:
                manifest["metadata"]["annotations"] = {RENDERED: digest}
                await self.cluster.apply(manifest)
        self._networked[work.who.uid] = generation

    def _observer(self, work: _Pass, store: Store) -> Observer:
        """What was read of immutable objects is kept between passes."""
        observer = self._observers.get(work.who.uid)
        if observer is None:
            observer = self._observers[work.who.uid] = Observer(store, work.who.name, work.who.uid)
        observer.store = store
        return observer

    async def _save(self, live: JsonObject, status: Model) -> JsonObject:
        """Write the status of the object as it was read. Raises Conflict when it has changed meanwhile."""
        saved = await self.cluster.replace_status({**live, "status": status.to_wire()})
        if saved is None:
            raise Conflict(f"{live['metadata']['name']} was deleted meanwhile")
        return saved

    async def _store_fault(self, live: JsonObject, error: Transient | Denied) -> float:
        name = live["metadata"]["name"]
        denied = isinstance(error, Denied)
        self.metrics.store_errors.labels(live["metadata"]["namespace"], name, "Denied" if denied else "Transient").inc()
        reason = Reason.DENIED if denied else Reason.INFRASTRUCTURE
        return await self._fault(live, "ArtifactStoreReachable", reason, error, 10.0)

    async def _fault(
        self, live: JsonObject, kind: str, reason: Reason, error: CurateEvoError, wait: float = FAULT_SECONDS
    ) -> float:
        """Say in a condition, and once in an Event, why no plan could be made."""
        raw = EvolutionStatus.model_validate(live.get("status") or {})
        generation = live["metadata"]["generation"]
        status = with_fault(raw, kind, reason, str(error), generation, self.clock())
        meta = live["metadata"]
        self.metrics.show_conditions(meta["namespace"], meta["name"], status.conditions)
        if status != raw:
            saved = await self._save(live, status)
            await announce(self.cluster, saved, Notice(reason.value, str(error), warning=True), self.clock())
        return wait

    def _count_stages(
        self,
        work: _Pass,
        before: dict[str, StageStatus],
        after: dict[str, StageStatus],
        seen: StagesSeen,
    ) -> None:
        for name, stage in after.items():
            old = before.get(name)
            if stage.state is not StageState.DONE or (old is not None and old.state is StageState.DONE):
                continue
            done = seen[Stage(name)].done if Stage(name) in seen else None
            if done is not None and done.manifest is not None:
                self.metrics.stage_done(work.evolution, name, done.manifest)


def _owner_of(live: JsonObject) -> Owner:
    return Owner(live["apiVersion"], live["kind"], live["metadata"]["name"], live["metadata"]["uid"])


def _version_manifest(work: _Pass, action: CreateVersion) -> JsonObject:
    owner = _owner_of(work.live)
    return {
        "apiVersion": VERSION.api_version,
        "kind": VERSION.kind,
        "metadata": {
            "name": action.name,
            "namespace": work.parent.namespace,
            "labels": labels.of_version(work.parent, action.spec.number),
            "ownerReferences": [owner.reference()],
        },
        "spec": action.spec.to_wire(),
    }


def _observe(observer: Observer, work: _Pass) -> tuple[EvolutionSeen, dict[int, VersionStagesSeen]]:
    """The evolution, and the stages of its versions that are not settled. Raises StoreUnavailable or Denied."""
    seen = observer.evolution(work.evolution, work.versions, work.jobs)
    open_ = {n: v for n, v in work.versions.items() if not _settled(v)}
    return seen, {n: observer.version_stages(work.evolution, v, seen, work.jobs) for n, v in open_.items()}


def _over(work: _Pass) -> bool:
    """The end was planned under this very spec, every version knows its verdict, and no job is left running."""
    status = work.evolution.status
    return (
        status.phase in OVER
        and status.observed_generation == work.evolution.metadata.generation
        and all(_settled(v) or v.spec.number > status.decided for v in work.versions.values())
        and work.jobs.quiet
    )


def _log(work: _Pass, action: Action) -> None:
    """What is done, with what it is about as fields."""
    about: dict[str, object] = {"namespace": work.parent.namespace, "evolution": work.parent.name}
    match action:
        case StartJob():
            request = action.request
            about |= {"version": request.version, "stage": request.stage.value, "attempt": request.attempt}
            text = f"starting {action.name}"
        case StopJob():
            about |= {"version": action.version, "stage": action.stage.value, "attempt": action.attempt}
            text = f"stopping {action.name}"
        case CreateVersion():
            about["version"] = action.spec.number
            text = f"creating {action.name}"
        case WriteDecision():
            about["version"] = action.record.number
            text = f"{action.record.verdict}: {action.record.reason}"
        case MoveChampion():
            about["version"] = action.pointer.number
            text = f"the champion is version {action.pointer.number}"
        case _:
            text = type(action).__name__
    logger.info(text, extra=about)


def _settled(version: PolicyVersion) -> bool:
    return version.status.phase in TERMINAL and version.status.verdict is not None
