"""Reads the package's tasks: `python -m curateevo_jobs.benchmarks.tau2.load SPLIT DOMAIN...`, a JSON line per task.

A process of its own: importing the package reads `.env` files and logs. An item has `domain`, `task` (as the package's
model of it), `policy` (the agent's system prompt), `user` (the simulator's), and the OpenAI schemas `tools` and
`user_tools`, sorted by name; where the task can be solved without a user, `solo_policy` and `solo_tools`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from curateevo_jobs.benchmarks.tau2 import offline  # noqa: F401  before the package

# isort: split
from tau2.agent.llm_agent import (
    AGENT_INSTRUCTION,
    AGENT_SOLO_INSTRUCTION,
    SYSTEM_PROMPT,
    SYSTEM_PROMPT_SOLO,
    LLMSoloAgent,
)
from tau2.environment.tool import Tool, as_tool
from tau2.registry import registry
from tau2.user.user_simulator import UserSimulator

JsonObject = dict[str, Any]
SOLO = ("telecom", "mock")
"""Domains whose tasks have tickets."""


def done() -> str:
    """Call this function when you are done with the task."""
    return str(LLMSoloAgent.STOP_TOKEN)


def main() -> None:
    split, *domains = sys.argv[1:]
    for domain in domains:
        for item in read(domain, split):
            print(json.dumps(item, ensure_ascii=False))  # noqa: T201


def read(domain: str, split: str) -> list[JsonObject]:
    """All tasks of a domain's split, in the package's order."""
    construct = registry.get_env_constructor(domain)
    environment = construct()
    user_tools = environment.get_user_tools() if environment.user_tools else []
    own_tools = environment.get_tools()
    common = {
        "domain": domain,
        "policy": SYSTEM_PROMPT.format(agent_instruction=AGENT_INSTRUCTION, domain_policy=environment.get_policy()),
        "tools": schemas(own_tools),
        "user_tools": schemas(user_tools),
    }
    solo = {}
    if domain in SOLO:
        instruction = AGENT_SOLO_INSTRUCTION.format(stop_function_name=LLMSoloAgent.STOP_FUNCTION_NAME)
        prompt = SYSTEM_PROMPT_SOLO.partition("\n<ticket>")[0]
        policy = construct(solo_mode=True).get_policy()
        solo = {
            "solo_policy": prompt.format(agent_instruction=instruction, domain_policy=policy),
            "solo_tools": schemas([*own_tools, *user_tools, as_tool(done)]),
        }
    items = []
    for task in registry.get_tasks_loader(domain)(split):
        user = UserSimulator(tools=user_tools or None, instructions=str(task.user_scenario))
        alone = solo if LLMSoloAgent.check_valid_task(task) and task.ticket else {}
        items.append({**common, **alone, "task": task.model_dump(mode="json"), "user": user.system_prompt})
    return items


def schemas(tools: list[Tool]) -> list[JsonObject]:
    """Tools as OpenAI schemas, sorted by name."""
    return sorted((tool.openai_schema for tool in tools), key=lambda schema: str(schema["function"]["name"]))


if __name__ == "__main__":
    main()
