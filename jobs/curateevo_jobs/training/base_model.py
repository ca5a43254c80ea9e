"""Where a base model's files are: a URI becomes a folder on this machine."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from urllib.parse import unquote, urlsplit

from curateevo.api.base import digest_of
from curateevo.api.errors import ContractBroken, Denied, SpecInvalid, Transient
from curateevo.api.spec import BaseModelRef
from curateevo.store.verify import sha256_of

TOKEN_VARIABLE = "HF_TOKEN"
"""The hub's token, from the Secret that `model.tokenSecretRef` names."""
CLAIM_ROOT = Path("/mnt/claims")
"""Where persistent volume claims are mounted: pvc://claim/path is CLAIM_ROOT/claim/path."""


def find_base(model: BaseModelRef) -> Path:
    """The folder with config, weights and tokenizer of the base model; downloads it for hf://.

    Raises ContractBroken when it is not there, Denied when the hub refuses, Transient when it is unreachable.
    """
    uri = urlsplit(model.base)
    match uri.scheme:
        case "builtin":
            folder = _builtin(uri.netloc)
        case "file" | "":
            folder = Path(unquote(uri.path))
        case "pvc":
            folder = CLAIM_ROOT / uri.netloc / unquote(uri.path).lstrip("/")
        case "hf":
            folder = _download(f"{uri.netloc}{unquote(uri.path)}")
        case _:
            raise SpecInvalid(
                f"model.base {model.base!r}: no base model can be read from {uri.scheme}://",
                "use hf://org/name@revision, file:///folder, pvc://claim/path or builtin://toolworld",
            )
    if not (folder / "config.json").is_file():
        raise ContractBroken(
            f"the base model {model.base} is not there: {folder} holds no config.json",
            "model.base must name a folder in the format of transformers' save_pretrained",
        )
    return folder


def fingerprint(model: BaseModelRef) -> str:
    """What stands behind a base model's URI now: a digest of its files, or of the URI where a revision pins it.

    Raises as `find_base` does.
    """
    if model.base.startswith("hf://"):
        return digest_of(model.base)
    folder = find_base(model)
    named = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
    return digest_of({p.relative_to(folder).as_posix(): sha256_of(p) for p in named})


def _builtin(name: str) -> Path:
    return Path(str(files("curateevo_jobs.benchmarks"))) / name / "base"


def _download(name: str) -> Path:
    """A snapshot of `org/name@revision` in the hub's cache."""
    from huggingface_hub import errors, snapshot_download

    repository, _, revision = name.partition("@")
    try:
        return Path(
            snapshot_download(repository, revision=revision or None, token=os.environ.get(TOKEN_VARIABLE) or None)
        )
    except errors.GatedRepoError as error:
        raise Denied(f"the hub refuses {name}: gated", "set model.tokenSecretRef") from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        raise ContractBroken(f"the hub has no model {name}", "check the name and the revision") from error
    except (
        errors.HfHubHTTPError,
        errors.LocalEntryNotFoundError,
        errors.OfflineModeIsEnabled,
        OSError,
    ) as error:
        raise Transient(f"the hub can't be reached for {name}: {type(error).__name__}") from error
