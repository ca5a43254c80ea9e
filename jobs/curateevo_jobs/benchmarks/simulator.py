"""A user played by a model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pydantic import Field, ValidationError

from curateevo.api.base import Model
from curateevo.api.errors import SpecInvalid, Transient
from curateevo_jobs.agents.chat import Answer, Conversation, Generation
from curateevo_jobs.agents.endpoint import Endpoint
from curateevo_jobs.benchmarks.base import JsonObject

KEY_VARIABLE = "CURATEEVO_USER_API_KEY"


class Simulator(Model):
    """Who plays the user: a suite's param `user`, kept in each task's state. The key is in the environment."""

    endpoint: str = Field(pattern="^https?://")
    """An OpenAI-compatible server, with its /v1."""
    model: str
    temperature: float = Field(default=0.0, ge=0, le=2)
    max_tokens: int = Field(default=1024, ge=1)

    def say(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject], seed: int) -> Answer:
        """What the user says next, or calls: `messages` are the user's view, in which the agent is the `user`.

        Raises Transient when there is no answer, or none that can be read.
        """
        generation = Generation(self.temperature, self.max_tokens)
        [answer] = _endpoint(self.endpoint, self.model).answer([Conversation(messages, tools)], generation, [seed])
        if answer.error is not None:
            raise Transient(f"the user simulator {self.model}: {answer.error.message}", f"is {self.endpoint} up?")
        if answer.context_full:
            raise Transient(f"the user simulator {self.model}: the conversation does not fit its context")
        if answer.malformed or any(call.arguments is None for call in answer.calls):
            raise Transient(f"the user simulator {self.model} made a call that can't be read")
        if not answer.calls and not answer.content.strip():
            raise Transient(f"the user simulator {self.model} said nothing")
        return answer


def simulator_of(suite: str, params: Mapping[str, Any]) -> Simulator:
    """The param `user`. Raises SpecInvalid when it is missing or wrong."""
    remedy = "user: {endpoint: 'http://server/v1', model: NAME, temperature: 0, maxTokens: 1024}"
    if "user" not in params:
        raise SpecInvalid(f"{suite}: these tasks have a user, whom a model plays: `user` says which", remedy)
    try:
        return Simulator.model_validate(params["user"])
    except ValidationError as error:
        first = error.errors()[0]
        raise SpecInvalid(f"{suite}: user.{'.'.join(map(str, first['loc']))}: {first['msg']}", remedy) from error


@cache
def _endpoint(url: str, model: str) -> Endpoint:
    """One client for all episodes."""
    return Endpoint(url, model, api_key=os.environ.get(KEY_VARIABLE, "none"))
