"""Prints the package's prompts: `python -m curateevo_jobs.benchmarks.acebench.load`, a JSON line per language.

A line has `language`; `travel` and `base`, what an agent who talks with a user is told of the airline and of the phone;
`user_travel` and `user_base`, the simulated user's prompt, to be formatted with the `instruction`; and `greeting`, what
the user is asked first.
"""

from __future__ import annotations

import json
import re
from typing import Any

from curateevo_jobs.benchmarks.acebench import parts  # noqa: F401  before the package

# isort: split
from evalscope.benchmarks.acebench.prompts import agent_prompt_set

LANGUAGES = ("en", "zh")
CALL_FORMAT = re.compile(
    r"""^(Function\ Calls:|函数调用：)\n
    | ^(When\ a\ function\ call\ is\ needed|当需要进行函数调用时).*\n
    | (,\ in\ the\ format\ |，调用形式为)\[ApiName.*$""",
    re.MULTILINE | re.VERBOSE,
)
"""What the prompts say of how a call is written: here calls are the API's own."""


def main() -> None:
    for language in LANGUAGES:
        print(json.dumps(prompts(language), ensure_ascii=False))  # noqa: T201


def prompts(language: str) -> dict[str, Any]:
    """The prompts of a language. Raises ValueError where the package's wording is not the one that is known."""
    found = agent_prompt_set(language)
    told = {kind: CALL_FORMAT.sub("", found[f"{kind}_policy"]) for kind in ("travel", "base")}
    if "ApiName" in "".join(told.values()):
        raise ValueError(f"the package's prompts in {language} say in an unknown place how a call is written")
    users = {"user_travel": found["user_travel"], "user_base": found["user_base"], "greeting": found["user_opening"]}
    return {"language": language, **told, **users}


if __name__ == "__main__":
    main()
