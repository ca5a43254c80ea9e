"""A phase of training: done once, gone on with where it was left. In a process for each GPU, data parallel; without
GPUs in the program's own.

Every process holds the whole model and takes a share of each batch. Batch sizes in `args` are per device, as in TRL:
the batch grows with the GPUs. The first process writes; store and progress stay with the program, which it asks. What a
phase held on a GPU, a vLLM engine for instance, goes with its processes.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import distributed
from torch.multiprocessing.spawn import ProcessContext, ProcessException, spawn

from curateevo.api.errors import CurateEvoError
from curateevo.policy.confine import die_with_parent
from curateevo_jobs.agents.hardware import LOOPBACK, free_port
from curateevo_jobs.stage import StageRun
from curateevo_jobs.training.gate import NotReleased
from curateevo_jobs.training.interruption import heeded
from curateevo_jobs.training.lane import Lane
from curateevo_jobs.training.weights import free_memory, prepare_torch, seed_everything

Build: TypeAlias = Callable[[Lane], Any]
"""The trainer of a phase. It can be pickled, and builds the same in every process."""
POLL_SECONDS = 0.05


def count_processes() -> int:
    """One for each GPU that this program can see; 0: there is none."""
    return torch.cuda.device_count()


def run_phase(lane: Lane, name: str, build: Build, start: Path) -> Path:
    """Train, or go on from the newest checkpoint, or do nothing when it is done. The folder of the model, `start` after
    this phase.

    Raises what the first process that fails raises, and SystemExit after a SIGTERM, all steps kept.
    """
    phase = lane.phase(name)
    if phase.facts() is not None:
        return phase.finished
    newest = phase.newest()
    lane.metrics.keep_until(name, newest[1] if newest else 0)
    work = partial(_train, name=name, build=build, start=start, newest=newest)
    if (count := count_processes()) == 0:
        with heeded(notice := threading.Event()):
            work(replace(lane, notice=notice))
        return phase.finished
    free_memory()
    context = get_context("spawn")
    asked, granted, told = context.SimpleQueue(), context.Event(), context.Event()
    away = Away(lane.run.checkpoints.folder, asked, granted)
    there = replace(lane, run=replace(lane.run, checkpoints=away, progress=away), notice=told)
    processes = spawn(_join_in, (count, free_port(), there, work), nprocs=count, join=False)  # type: ignore[no-untyped-call]
    try:
        with heeded(told):
            _attend(processes, lane.run, asked, granted)
    finally:
        for process in processes.processes:
            process.kill()
            process.join()
    return phase.finished


def _train(lane: Lane, name: str, build: Build, start: Path, newest: tuple[Path, int] | None) -> None:
    seed_everything(lane.seed)
    trainer = build(lane)
    trainer.train(resume_from_checkpoint=str(newest[0]) if newest else None)
    if trainer.is_world_process_zero() and trainer.state.global_step >= trainer.state.max_steps:
        lane.finish(name, trainer, start)


@dataclass(frozen=True, slots=True)
class Away:
    """Checkpoints and progress of a program, in the process that writes."""

    folder: Path
    asked: SimpleQueue[Any]
    granted: Event

    def save(self) -> None:
        self.asked.put(("save",))
        self.granted.wait()
        self.granted.clear()

    def discard(self) -> None:
        """The program's to do."""

    def report(self, phase: str, done: int, total: int, **metrics: float) -> None:
        self.asked.put(("report", phase, done, total, metrics))


def _attend(processes: ProcessContext, run: StageRun, asked: SimpleQueue[Any], granted: Event) -> None:
    """Do what the processes ask for until they have ended."""
    failures: list[Exception] = []

    def serve() -> None:
        while not asked.empty():
            match asked.get():
                case ("save",):
                    run.checkpoints.save()
                    granted.set()
                case ("report", phase, done, total, metrics):
                    run.progress.report(phase, done, total, **metrics)
                case ("failed", failure):
                    failures.append(failure)

    try:
        while not processes.join(timeout=POLL_SECONDS):
            serve()
        serve()
    except ProcessException:
        serve()
        if failures:
            raise failures[0] from None
        raise


def _join_in(rank: int, count: int, port: int, lane: Lane, work: Callable[[Lane], None]) -> None:
    """Be process `rank` of `count`."""
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the program hears it, and tells
    if count > 1:
        _name_process(rank, count, port)
    prepare_torch()
    if torch.cuda.is_available():
        torch.cuda.set_device(rank)
    away = lane.run.checkpoints
    assert isinstance(away, Away)
    try:
        work(lane)
    except (CurateEvoError, NotReleased) as failure:
        away.asked.put(("failed", failure))
        raise
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _name_process(rank: int, count: int, port: int) -> None:
    """Say what torch.distributed, accelerate and vLLM look up."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
    os.environ |= {"MASTER_ADDR": LOOPBACK, **{name: str(value) for name, value in names.items()}}
