"""What rendering needs to know beside the spec: images, and whose children the objects are."""

from __future__ import annotations

from dataclasses import dataclass

from curateevo.api.base import JsonObject


@dataclass(frozen=True, slots=True)
class RenderSettings:
    """Set once per operator."""

    jobs_image: str
    """ingest, propose, the trusted steps of curate, and evaluate where models are served."""
    trainer_image: str
    """train, and evaluate in process."""
    serve_image: str
    """The model servers."""
    sandbox_image: str
    """The policy's container: the library alone."""
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    job_ttl_seconds: int = 3600
    """How long a finished Job is kept for reading its logs."""
    work_storage_class: str = ""
    """sandbox.isolation Pod: of the claims that curate's steps share; empty: the cluster's default."""


@dataclass(frozen=True, slots=True)
class Parent:
    """The CurationEvolution that everything belongs to."""

    name: str
    namespace: str
    uid: str


@dataclass(frozen=True, slots=True)
class Owner:
    """The object with which the rendered ones go: the evolution, or one of its PolicyVersions."""

    api_version: str
    kind: str
    name: str
    uid: str

    def reference(self) -> JsonObject:
        """As an owner reference."""
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
