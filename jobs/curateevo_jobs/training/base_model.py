"""Where a base model's files are: a URI becomes a folder on this machine."""

from __future__ import annotations

import os
import tempfile
from importlib.resources import files
from pathlib import Path
from urllib.parse import unquote, urlsplit

from curateevo.api.base import digest_of
from curateevo.api.errors import ContractBroken, Denied, SpecInvalid, Transient
from curateevo.api.spec import BaseModelRef
from curateevo.evolution.pods import CLAIM_ROOT, HUB_TOKEN_VARIABLE
from curateevo.store.verify import sha256_of


def find_base(model: BaseModelRef, *, endpoint: str | None = None, downloads: Path | None = None) -> Path:
    """The folder with config, weights and tokenizer of the base model; downloads it for hf:// and s3://.

    `endpoint` is that of an S3 server other than AWS. `downloads` is where a model from S3 goes; the hub's client has a
    cache of its own. Raises ContractBroken when it is not there, Denied when it is refused, Transient when the hub or
    the store is unreachable.
    """
    uri = urlsplit(model.base)
    match uri.scheme:
        case "builtin":
            folder = _builtin(uri.netloc)
        case "file" | "":
            folder = Path(unquote(uri.path))
        case "pvc":
            folder = Path(CLAIM_ROOT) / uri.netloc / unquote(uri.path).lstrip("/")
        case "hf":
            folder = _download(f"{uri.netloc}{unquote(uri.path)}")
        case "s3":
            folder = _from_store(model.base, endpoint, downloads or Path(tempfile.mkdtemp(prefix="curateevo-base-")))
        case _:
            raise SpecInvalid(
                f"model.base {model.base!r}: no base model can be read from {uri.scheme}://",
                "use hf://org/name@revision, s3://bucket/path, file:///path, pvc://claim/path or builtin://toolworld",
            )
    if not (folder / "config.json").is_file():
        raise ContractBroken(
            f"the base model {model.base} is not there: {folder} holds no config.json",
            "model.base must name a folder in the format of transformers' save_pretrained",
        )
    return folder


def fingerprint(model: BaseModelRef, endpoint: str | None = None) -> str:
    """What stands behind a base model's URI now: a digest of its files, of the store's tags of them, or of the URI
    where a revision pins it. Nothing is downloaded.

    Raises as `find_base` does.
    """
    if model.base.startswith("hf://"):
        return digest_of(model.base)
    if model.base.startswith("s3://"):
        from curateevo.store.s3 import describe_objects

        return digest_of(describe_objects(model.base, endpoint))
    folder = find_base(model)
    named = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
    return digest_of({p.relative_to(folder).as_posix(): sha256_of(p) for p in named})


def _from_store(uri: str, endpoint: str | None, downloads: Path) -> Path:
    """A folder of the store, with the store's keys; downloaded once."""
    from curateevo.store.s3 import fetch_folder

    folder = downloads / f"base-{digest_of(uri).removeprefix('sha256:')[:16]}"
    if not folder.is_dir():
        partial = Path(tempfile.mkdtemp(dir=downloads))
        fetch_folder(uri, endpoint, partial)
        partial.rename(folder)
    return folder


def _builtin(name: str) -> Path:
    return Path(str(files("curateevo_jobs.benchmarks"))) / name / "base"


def _download(name: str) -> Path:
    """A snapshot of `org/name@revision` in the hub's cache."""
    from huggingface_hub import errors, snapshot_download

    repository, _, revision = name.partition("@")
    try:
        return Path(
            snapshot_download(repository, revision=revision or None, token=os.environ.get(HUB_TOKEN_VARIABLE) or None)
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
