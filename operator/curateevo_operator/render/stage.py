"""One attempt of a stage as the objects that run it."""

from __future__ import annotations

import copy
from typing import assert_never
from urllib.parse import urlsplit

from curateevo.api.base import JsonObject
from curateevo.api.errors import SpecInvalid
from curateevo.api.spec import EvolutionSpec
from curateevo.api.stage import (
    CurateParams,
    EvaluateParams,
    IngestParams,
    ProposeParams,
    StageRequest,
    TrainParams,
)
from curateevo_operator.render import programs
from curateevo_operator.render.attempt import Attempt, check_names
from curateevo_operator.render.curate import render_curate
from curateevo_operator.render.serve import render_servers
from curateevo_operator.render.settings import Owner, Parent, RenderSettings
from curateevo_operator.render.trainjob import render_train_job


def render_stage(
    settings: RenderSettings, parent: Parent, owner: Owner, spec: EvolutionSpec, name: str, request: StageRequest
) -> tuple[JsonObject, ...]:
    """The objects of one attempt, in the order of creation. The main Job, called `name`, is the last: that it exists
    proves that the rest was made.

    Raises SpecInvalid, with the field's path, for what can't be run on a cluster.
    """
    check_names(parent, name)
    return copy.deepcopy(_render(settings, parent, owner, spec, name, request))


def _render(
    settings: RenderSettings, parent: Parent, owner: Owner, spec: EvolutionSpec, name: str, request: StageRequest
) -> tuple[JsonObject, ...]:
    """Parts of what is returned are constants."""
    if urlsplit(spec.storage.uri).scheme != "s3":
        raise SpecInvalid(f"spec.storage.uri: {spec.storage.uri}: pods share no files", "use s3://bucket/prefix")
    attempt = Attempt(settings, parent, owner, spec, name, request)
    params = request.params
    match params:
        case IngestParams():
            return (programs.render_ingest(attempt),)
        case ProposeParams():
            return (programs.render_propose(attempt),)
        case CurateParams():
            return render_curate(attempt)
        case TrainParams():
            return _train(attempt)
        case EvaluateParams():
            return _evaluate(attempt, params)
        case _:
            assert_never(params)


def _train(attempt: Attempt) -> tuple[JsonObject, ...]:
    if attempt.spec.training.engine == "TrainJob":
        return render_train_job(attempt)
    return (programs.render_train(attempt),)


def _evaluate(attempt: Attempt, params: EvaluateParams) -> tuple[JsonObject, ...]:
    if params.serving.engine == "transformers":
        return (programs.render_evaluate_in_process(attempt, params),)
    servers = render_servers(attempt, params)
    return (*servers.objects, programs.render_evaluate(attempt, params, servers.variables))
