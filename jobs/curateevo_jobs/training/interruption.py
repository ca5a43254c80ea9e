"""SIGTERM during a phase: the step under way is finished and kept, so that an eviction costs none."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import distributed
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class Notice(Protocol):
    """An event, of threads or of processes."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...


@contextmanager
def heeded(notice: Notice) -> Iterator[None]:
    """While the context lasts SIGTERM sets the notice; at its end the program ends, if there was one."""
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: notice.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
    if notice.is_set():
        sys.exit(128 + signal.SIGTERM)


class Interruption(TrainerCallback):  # type: ignore[misc]
    """Saves and stops after the step in which the notice came, in all processes alike."""

    def __init__(self, notice: Notice) -> None:
        self._notice = notice

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        given = self._notice.is_set()
        if distributed.is_initialized():
            heard = torch.tensor(float(given), device=args.device)
            distributed.all_reduce(heard, op=distributed.ReduceOp.MAX)
            given = bool(heard.item())
        if given:
            control.should_save = control.should_training_stop = True
