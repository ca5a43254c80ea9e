"""Which model is served: a name that is derived from the model itself, so that a server can prove what it serves.

The server's side derives it from the files that it loads, the evaluator's from the references in its request.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from curateevo.api.errors import ContractBroken
from curateevo.api.stage import EvaluateParams, StageRequest, Subject, SubjectKind
from curateevo.store.verify import sha256_of
from curateevo_jobs.training.base_model import fingerprint

NAME_CHARS = 32


def digest_files(digests: Mapping[str, str]) -> str:
    """sha256 hex over files: their relative paths, each with the sha256 hex of its content."""
    total = sha256()
    for path, digest in sorted(digests.items()):
        total.update(f"{path}\n{digest}\n".encode())
    return total.hexdigest()


def digest_model(folder: Path) -> str:
    """`digest_files` of all files of a folder."""
    files = (p for p in folder.rglob("*") if p.is_file())
    return digest_files({p.relative_to(folder).as_posix(): sha256_of(p) for p in files})


def served_name(digest: str) -> str:
    """The name under which a server offers the model with this sha256 hex."""
    return f"sha256-{digest[:NAME_CHARS]}"


def model_inputs(request: StageRequest, subject: str) -> dict[str, str]:
    """The inputs that are a subject's model: path within the model to path among the inputs."""
    folder = f"{subject}/model/"
    return {path.removeprefix(folder): path for path in request.inputs if path.startswith(folder)}


def expected_name(request: StageRequest, params: EvaluateParams, subject: Subject) -> str:
    """The name under which a subject's model is to be served, from the request alone.

    Raises ContractBroken for a subject without a model, and what `fingerprint` raises.
    """
    if subject.kind is SubjectKind.BASE:
        return served_name(fingerprint(params.model, request.store.endpoint).removeprefix("sha256:"))
    inputs = model_inputs(request, subject.name)
    if "config.json" not in inputs:
        raise ContractBroken(f"subject {subject.name} has no model among the inputs")
    digests = {path: request.inputs[name].digest.removeprefix("sha256:") for path, name in inputs.items()}
    return served_name(digest_files(digests))
