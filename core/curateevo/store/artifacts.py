"""Artifacts on top of a store: publish a folder with its manifest last, read manifests, share work by input digest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from curateevo.api.base import canonical_json, digest_of
from curateevo.api.errors import ContractBroken
from curateevo.api.stage import (
    EvaluateSummary,
    FileEntry,
    FileRef,
    Manifest,
    Outcome,
    StageRequest,
    Summary,
    Usage,
    content_digest,
)
from curateevo.store.protocol import Store

MANIFEST = "manifest.json"


def manifest_key(prefix: str) -> str:
    return f"{prefix}/{MANIFEST}"


def cache_key(request: StageRequest, salt: str) -> str:
    """`salt` stands for inputs that are named by the parameters and not stored, such as a base model's files."""
    digest = digest_of([request.input_digest, salt]) if salt else request.input_digest
    return f"cache/{request.stage.value}/{digest.removeprefix('sha256:')}.json"


def publish(
    store: Store,
    request: StageRequest,
    folder: Path,
    *,
    summary: Summary,
    outcome: Outcome = Outcome.OK,
    reason: str = "",
    message: str = "",
    volatile: frozenset[str] = frozenset(),
    usage: Usage | None = None,
) -> Manifest:
    """Store every file of `folder` under the request's prefix, and last the manifest."""
    entries = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        ref = store.put(f"{request.prefix}/{name}", path)
        entries.append(
            FileEntry(
                path=name,
                key=ref.key,
                size_bytes=ref.size_bytes,
                sha256=ref.digest.removeprefix("sha256:"),
                volatile=name in volatile,
            )
        )
    files = tuple(entries)
    manifest = Manifest(
        stage=request.stage,
        input_digest=work_done(request, summary).input_digest,
        outcome=outcome,
        reason=reason,
        message=message,
        files=files,
        digest=content_digest(outcome, files),
        summary=summary,
        usage=usage or Usage(),
    )
    _write_manifest(store, request.prefix, manifest)
    return manifest


def reuse(store: Store, request: StageRequest, salt: str = "") -> Manifest | None:
    """If this very work is done already, write a manifest that points at it and return that; otherwise None. What was
    evaluated in full does for an evaluation that may end early; never the other way round."""
    found = _remembered(store, request.in_full(), salt) or _remembered(store, request, salt)
    if found is None:
        return None
    origin, manifest = found
    shared = manifest.model_copy(
        update={
            "cached_from": manifest.cached_from or origin.key.removesuffix(f"/{MANIFEST}"),
            "usage": Usage(),
        }
    )
    _write_manifest(store, request.prefix, shared)
    return shared


def _remembered(store: Store, request: StageRequest, salt: str) -> tuple[FileRef, Manifest] | None:
    raw = store.get(cache_key(request, salt))
    if raw is None:
        return None
    origin = FileRef.model_validate_json(raw)
    manifest = read_manifest(store, origin.key.removesuffix(f"/{MANIFEST}"))
    return (origin, manifest) if manifest is not None and manifest.input_digest == request.input_digest else None


def remember(store: Store, request: StageRequest, manifest: Manifest, salt: str = "") -> None:
    """Let later requests for the same work, and with the same salt, find this artifact."""
    key = manifest_key(request.prefix)
    data = _encode(manifest)
    ref = FileRef(key=key, digest=manifest.digest, size_bytes=len(data))
    done = work_done(request, manifest.summary)
    store.put_once(cache_key(done, salt), canonical_json(ref.to_wire()).encode())


def work_done(request: StageRequest, summary: Summary) -> StageRequest:
    """The request that an artifact answers: an evaluation that might have ended early, and did not, is a full one."""
    early = isinstance(summary, EvaluateSummary) and summary.stopped is not None
    return request if early else request.in_full()


def read_manifest(store: Store, prefix: str) -> Manifest | None:
    """The manifest below `prefix`; None when the artifact is not finished. Raises ContractBroken if it is not one."""
    raw = store.get(manifest_key(prefix))
    if raw is None:
        return None
    try:
        manifest = Manifest.model_validate_json(raw)
    except ValidationError as error:
        raise ContractBroken(f"{manifest_key(prefix)}: not a manifest: {error.errors()[0]['msg']}") from error
    if content_digest(manifest.outcome, manifest.files) != manifest.digest:
        raise ContractBroken(f"{manifest_key(prefix)}: its digest does not match its files")
    return manifest


def fetch_inputs(store: Store, inputs: Mapping[str, FileRef], folder: Path) -> None:
    """Copy every input to its path below `folder`, verified."""
    for path, ref in inputs.items():
        store.fetch(ref, folder / path)


def _encode(manifest: Manifest) -> bytes:
    return canonical_json(manifest.to_wire()).encode()


def _write_manifest(store: Store, prefix: str, manifest: Manifest) -> None:
    store.put_once(manifest_key(prefix), _encode(manifest))
