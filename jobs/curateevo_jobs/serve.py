"""The serve program: one subject's model behind vLLM, in two steps, so that the server itself holds no keys.

`fetch` has the keys and leaves the model in a folder; `run` serves what lies there, under a name that is derived from
it, until it is told to end. The evaluate program checks the name (see `agents/served.py`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from threading import Thread
from typing import BinaryIO

from curateevo.api.errors import ContractBroken, Transient
from curateevo.api.stage import EvaluateParams, StageRequest, Subject, SubjectKind
from curateevo.store.connect import connect
from curateevo_jobs.agents.ending import MARK_VARIABLE, Ending
from curateevo_jobs.agents.identity import digest_model, expected_name, model_inputs, served_name
from curateevo_jobs.agents.vllm import server_command, start, stop, with_template
from curateevo_jobs.training.base_model import find_base

PLACE = "place.json"
"""Where `fetch` left the model, and for a base model its name."""
ANY_HOST = "0.0.0.0"
POLL_SECONDS = 0.2
LAST_LINES, LINE_CHARS = 8, 200
"""What is told of the log of a server that ended by itself."""


def fetch(request: StageRequest, params: EvaluateParams, subject_name: str, folder: Path) -> None:
    """Bring the subject's model below `folder`, verified: trained files from the store, or the base model.

    Raises ContractBroken for a subject without a model, and what the store and `find_base` raise.
    """
    subject = find_subject(params, subject_name)
    name = expected_name(request, params, subject)
    if subject.kind is SubjectKind.BASE:
        place = find_base(params.model, endpoint=request.store.endpoint, downloads=folder)
    else:
        place = folder / "model"
        store = connect(request.store)
        for path, key in model_inputs(request, subject.name).items():
            store.fetch(request.inputs[key], place / path)
    (folder / PLACE).write_text(json.dumps({"folder": str(place), "name": name}), encoding="utf-8")


def run(params: EvaluateParams, subject_name: str, folder: Path, port: int) -> None:
    """Serve what `fetch` left until the evaluator says that it was enough. Raises ContractBroken when nothing was left,
    and Transient when the server ends by itself."""
    subject = find_subject(params, subject_name)
    place, name = read_place(folder, subject)
    with tempfile.TemporaryDirectory(prefix="curateevo-serve-") as scratch:
        mark = Path(scratch) / "ended"
        arguments = with_template(params.serving.args, params.model.chat_template, Path(scratch))
        middleware = ("--middleware", f"{Ending.__module__}.{Ending.__name__}")
        command = server_command(place, name, ANY_HOST, port, [*middleware, *arguments])
        process = start(command, subprocess.PIPE, **{MARK_VARIABLE: str(mark)})
        last = deque[str](maxlen=LAST_LINES)
        reader = Thread(target=_pass_on, args=(process.stdout, last), daemon=True)
        reader.start()
        try:
            while not mark.exists():
                if (code := process.poll()) is not None:
                    reader.join(timeout=POLL_SECONDS)
                    raise Transient("\n".join((f"the vLLM server ended with {code}", *last)))
                time.sleep(POLL_SECONDS)
        finally:
            stop(process)


def _pass_on(output: BinaryIO, last: deque[str]) -> None:
    """What the server says goes to this program's output; the last lines are kept."""
    for line in output:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        if text := line.decode("utf-8", "replace").strip():
            last.append(text[:LINE_CHARS])


def read_place(folder: Path, subject: Subject) -> tuple[Path, str]:
    """The model's folder and its served name: of trained files, by what really lies there. Raises ContractBroken."""
    try:
        raw = json.loads((folder / PLACE).read_text(encoding="utf-8"))
        place, name = Path(raw["folder"]), str(raw["name"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ContractBroken(f"{folder} holds no fetched model", "run the fetch step first") from error
    if not (place / "config.json").is_file():
        raise ContractBroken(f"the model of {subject.name} is not there: {place} holds no config.json")
    return place, served_name(digest_model(place)) if subject.kind is SubjectKind.MODEL else name


def find_subject(params: EvaluateParams, name: str) -> Subject:
    """The subject of that name. Raises ContractBroken when there is none with a model."""
    for subject in params.subjects:
        if subject.name == name and subject.kind is not SubjectKind.NOTHING:
            return subject
    raise ContractBroken(f"the request has no subject {name!r} with a model")
