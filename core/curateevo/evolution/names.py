"""Names and store keys, derived from (evolution, version, stage, attempt): making something twice is harmless."""

from __future__ import annotations

import hashlib

from curateevo.api.evolution import Stage

MAX_NAME = 63
HASH_CHARS = 8


def version_name(evolution: str, number: int) -> str:
    """Name of the PolicyVersion object."""
    return short_name(f"{evolution}-v{number}")


def job_name(evolution: str, stage: Stage, version: int | None, attempt: int) -> str:
    """Name of one attempt's job."""
    middle = "" if version is None else f"-v{version}"
    return short_name(f"{evolution}{middle}-{stage.value}-a{attempt}")


def serve_name(job: str, index: int) -> str:
    """Name of a model server that belongs to a job, and of its Service: those begin with a letter."""
    name = f"{job}-serve-{index}"
    return short_name(name if name[0].isalpha() else f"s-{name}")


def evolution_prefix(uid: str) -> str:
    return f"evolutions/{uid}"


def version_prefix(uid: str, number: int) -> str:
    return f"{evolution_prefix(uid)}/versions/{number}"


def attempt_prefix(uid: str, stage: Stage, version: int | None, attempt: int) -> str:
    """Where an attempt's artifact goes."""
    return f"{stage_prefix(uid, stage, version)}/a{attempt}"


def stage_prefix(uid: str, stage: Stage, version: int | None) -> str:
    base = evolution_prefix(uid) if version is None else version_prefix(uid, version)
    return f"{base}/{stage.value}"


def checkpoint_prefix(uid: str, stage: Stage, version: int | None) -> str:
    """Shared by all attempts of a stage of one version."""
    return f"{stage_prefix(uid, stage, version)}/checkpoints"


def decision_key(uid: str, number: int) -> str:
    return f"{version_prefix(uid, number)}/decision.json"


def champion_key(uid: str) -> str:
    return f"{evolution_prefix(uid)}/champion.json"


def submission_key(uid: str, number: int) -> str:
    """Where `curateevo policy submit` puts a person's policy for round `number`."""
    return f"{version_prefix(uid, number)}/submission.py"


def initial_policy_key(uid: str) -> str:
    return f"{evolution_prefix(uid)}/initial-policy.py"


def short_name(name: str) -> str:
    """Names over 63 characters keep their end and get a hash of the whole in front of it."""
    if len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:HASH_CHARS]
    tail = name[-30:].lstrip("-")
    head = name[: MAX_NAME - HASH_CHARS - len(tail) - 2].rstrip("-")
    return f"{head}-{digest}-{tail}"
