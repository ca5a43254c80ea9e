"""The serve program: one subject's model behind vLLM, in two steps, so that the server itself holds no keys.

`fetch` has the keys and leaves the model in a folder; `run` serves what lies there, under a name that is derived from
it, and becomes the server. The evaluate program checks the name (see `agents/served.py`).
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import NoReturn

from curateevo.api.errors import ContractBroken
from curateevo.api.stage import EvaluateParams, StageRequest, Subject, SubjectKind
from curateevo.store.connect import connect
from curateevo_jobs.agents.identity import digest_model, expected_name, model_inputs, served_name
from curateevo_jobs.agents.vllm import server_command, server_environment, with_template
from curateevo_jobs.training.base_model import find_base

PLACE = "place.json"
"""Where `fetch` left the model, and for a base model its name."""
ANY_HOST = "0.0.0.0"


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


def run(params: EvaluateParams, subject_name: str, folder: Path, port: int) -> NoReturn:
    """Become the server of what `fetch` left. Raises ContractBroken when it left nothing."""
    subject = find_subject(params, subject_name)
    place, name = read_place(folder, subject)
    scratch = Path(tempfile.mkdtemp(prefix="curateevo-serve-"))
    arguments = with_template(params.serving.args, params.model.chat_template, scratch)
    command = server_command(place, name, ANY_HOST, port, arguments)
    os.execve(command[0], command, server_environment())


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
