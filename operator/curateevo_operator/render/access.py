"""Who may reach what: keys of the store, of the model hub and of the LLM, and the volumes that hold base models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from curateevo.api.base import JsonObject
from curateevo.api.errors import SpecInvalid
from curateevo.api.spec import EvolutionSpec
from curateevo.evolution.pods import CLAIM_ROOT, HUB_TOKEN_VARIABLE, LLM_KEY_VARIABLE, REWRITE_KEY_VARIABLE
from curateevo_operator.render.pods import Mount, secret_value

STORE_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
OPTIONAL_STORE_KEYS = ("AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION")
HUB_HOME_VARIABLE = "HF_HOME"
CACHE_FOLDER = "/mnt/cache"
Env = Mapping[str, str | JsonObject]


@dataclass(frozen=True, slots=True)
class BaseAccess:
    """What a container needs to read the base model."""

    env: Env = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()


def store_env(spec: EvolutionSpec) -> Env:
    """Keys of the store; nothing where the pod's service account is its identity."""
    ref = spec.storage.secret_ref
    if ref is None:
        return {}
    required = {key: secret_value(ref.name, key) for key in STORE_KEYS}
    return required | {key: secret_value(ref.name, key, optional=True) for key in OPTIONAL_STORE_KEYS}


def llm_env(spec: EvolutionSpec) -> Env:
    """The key of the evolver's LLM. An agent is not given it: see `curateevo.evolver.meter`."""
    llm = spec.proposer.llm
    if not spec.proposer.type.asks_model or llm is None or llm.api_key_secret_ref is None:
        return {}
    return {LLM_KEY_VARIABLE: secret_value(llm.api_key_secret_ref.name, llm.api_key_secret_ref.key)}


def rewrite_env(spec: EvolutionSpec) -> Env:
    """The key of the model that rewrites."""
    if spec.augmentation is None or (ref := spec.augmentation.llm.api_key_secret_ref) is None:
        return {}
    return {REWRITE_KEY_VARIABLE: secret_value(ref.name, ref.key)}


def base_downloads(spec: EvolutionSpec, folder: str) -> BaseAccess:
    """For a container that downloads the base model where it lies in a hub. `folder`: where it goes without a claim."""
    if urlsplit(spec.model.base).scheme != "hf":
        return BaseAccess({}, claim_mounts(spec))
    ref = spec.model.token_secret_ref
    token = {} if ref is None else {HUB_TOKEN_VARIABLE: secret_value(ref.name, ref.key)}
    cache = cache_mounts(spec, read_only=False)
    return BaseAccess({**token, HUB_HOME_VARIABLE: CACHE_FOLDER if cache else f"{folder}/hub"}, cache)


def base_files(spec: EvolutionSpec) -> BaseAccess:
    """For a container that reads what is there already, and has no keys."""
    return BaseAccess({}, (*claim_mounts(spec), *cache_mounts(spec, read_only=True)))


def cache_mounts(spec: EvolutionSpec, *, read_only: bool) -> tuple[Mount, ...]:
    """The claim that keeps what was downloaded from a hub."""
    claim = spec.model.cache_volume_claim
    if claim is None or urlsplit(spec.model.base).scheme != "hf":
        return ()
    return (Mount("hub-cache", CACHE_FOLDER, {"persistentVolumeClaim": {"claimName": claim}}, read_only),)


def claim_mounts(spec: EvolutionSpec) -> tuple[Mount, ...]:
    """The claim of a pvc:// model."""
    uri = urlsplit(spec.model.base)
    if uri.scheme != "pvc":
        return ()
    if not uri.netloc:
        raise SpecInvalid(f"spec.model.base: {spec.model.base!r} names no claim", "write pvc://claim/path")
    source = {"persistentVolumeClaim": {"claimName": uri.netloc, "readOnly": True}}
    return (Mount("base-model", f"{CLAIM_ROOT}/{uri.netloc}", source, read_only=True),)
