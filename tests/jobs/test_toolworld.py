"""toolworld: the world's rules, the suite, the corpus with its truth, and what the base has not seen."""

from __future__ import annotations

import itertools
import json
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from curateevo.api.errors import SpecInvalid
from curateevo_jobs.benchmarks.base import Environment, Suite, Task
from curateevo_jobs.benchmarks.toolworld import corpus, pretraining, pretraining_words, world
from curateevo_jobs.benchmarks.toolworld.corpus import Copy, Defect, Truth
from curateevo_jobs.benchmarks.toolworld.phrasing import CLOSERS, OPENERS, PHRASINGS, Skill
from curateevo_jobs.benchmarks.toolworld.suite import ToolworldSuite, dev_scenarios
from curateevo_jobs.benchmarks.toolworld.values import CITIES, NUMBER_ARGUMENTS, PEOPLE, WORDS_BY_ARGUMENT
from curateevo_jobs.benchmarks.toolworld.world import Call, Scenario, World, fact, reference_calls

BASE = Path(world.__file__).parent / "base"
SUITE: Suite = ToolworldSuite()
DEV = [scenario for skill in Skill for scenario in dev_scenarios(skill, 60)]


@pytest.fixture(scope="module")
def generated() -> tuple[list[dict[str, Any]], dict[str, Truth]]:
    return corpus.generate(0)


def play(task: Task, calls: tuple[Call, ...]) -> Environment:
    environment = SUITE.environment(task.state)
    for call in calls:
        environment.call(call.name, call.arguments)
    return environment


def scenario(skill: Skill, *, trouble: bool) -> Scenario:
    return next(s for s in DEV if s.skill is skill and s.trouble is trouble)


# ---- the world ----


def test_reference_calls_score_one() -> None:
    for task, solved in zip(SUITE.tasks({}), DEV, strict=True):
        score = play(task, reference_calls(solved)).score("Done.")
        assert (score.success, score.reward) == (1.0, 1.0) and all(score.checks.values()), solved


def test_doing_nothing_scores_zero_except_in_chat() -> None:
    for task in SUITE.tasks({}):
        score = play(task, ()).score("Done.")
        assert score.success == score.reward == float(task.family == Skill.CHAT)


def test_a_wrong_argument_a_needless_call_or_another_order_scores_no_success() -> None:
    extra = Call("check_stock", {"item": "lamp"})
    for task, solved in zip(SUITE.tasks({}), DEV, strict=True):
        wanted = reference_calls(solved)
        attempts = [(*wanted, extra), (extra, *wanted)]
        if wanted:
            name = next(iter(wanted[0].arguments))
            wrong = Call(wanted[0].name, {**wanted[0].arguments, name: "nobody"})
            attempts += [(wrong, *wanted[1:]), wanted[:-1]]
        if len(wanted) > 1:
            attempts.append(wanted[::-1])
        for calls in attempts:
            score = play(task, calls).score("Done.")
            assert score.success == 0.0 and score.reward <= 0.5, calls


def test_the_reward_grows_with_the_matched_prefix() -> None:
    solved = scenario(Skill.REFUND, trouble=True)
    wanted = reference_calls(solved)
    right_tool = Call("refund_order", {"order": 1})
    rewards = []
    for calls in [(), wanted[:1], (wanted[0], right_tool), wanted]:
        environment = World(solved)
        for call in calls:
            environment.call(call.name, call.arguments)
        rewards.append(environment.score("").reward)
    assert rewards == [0.0, 0.25, 0.375, 1.0]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("no_such_tool", {}),
        ("get_weather", {}),
        ("get_weather", {"town": "Oslo"}),
        ("get_weather", {"city": 3}),
        ("get_weather", {"city": ["Oslo"]}),
        ("get_weather", {"city": "Oslo", "day": "today"}),
        ("get_weather", None),
        ("get_weather", "Oslo"),
        ("set_timer", {"minutes": "5"}),
        ("set_timer", {"minutes": True}),
        ("set_timer", {"minutes": 5.0}),
        ("find_order", {"customer": None}),
    ],
)
def test_a_call_that_cannot_be_run_is_answered_with_an_error(name: str, arguments: Any) -> None:
    for skill in Skill:
        assert World(next(s for s in DEV if s.skill is skill)).call(name, arguments).startswith("error ")


def test_every_tool_answers_any_well_typed_call() -> None:
    rng = random.Random(0)
    for solved in DEV[::7]:
        environment = World(solved)
        for name, arguments in world.TOOL_ARGUMENTS.items():
            values = {a: 7 if a in NUMBER_ARGUMENTS else rng.choice(WORDS_BY_ARGUMENT[a]) for a in arguments}
            assert re.fullmatch(r"(ok|error|none|order|\d+)( \w+)*", environment.call(name, values))


def test_a_failed_message_is_recovered_by_paging_and_a_short_stock_by_buying_fewer() -> None:
    message = World(scenario(Skill.MESSAGE, trouble=True))
    send, page = reference_calls(scenario(Skill.MESSAGE, trouble=True))
    assert message.call(page.name, page.arguments) == "error send first"
    assert message.call(send.name, send.arguments) == "error offline"
    assert message.call(page.name, page.arguments).startswith("ok ")
    short = scenario(Skill.BUY, trouble=True)
    buy, fewer = reference_calls(short)
    assert World(short).call(buy.name, buy.arguments) == f"error only {short.have}"
    assert World(short).call(fewer.name, fewer.arguments) == "ok"


def test_an_account_and_a_parcel_need_the_fact() -> None:
    environment = World(scenario(Skill.SHIP, trouble=True))
    assert environment.call("ship_parcel", {"city": "Oslo", "code": "nothing"}) == "error code"
    assert environment.call("get_weather", {"city": "Oslo"}) == f"ok Oslo code {fact('code', 'Oslo')}"
    assert environment.call("open_account", {"customer": "Ana", "pin": fact("pin", "Ana")}).startswith("ok Ana")


def test_a_broken_state_is_a_value_error() -> None:
    for state in ["{}", "[]", "not json", '{"skill": "cooking"}']:
        with pytest.raises(ValueError):
            World.from_state(state)


# ---- the suite ----


def test_the_suite_is_deterministic_and_a_longer_pool_begins_with_a_shorter_one() -> None:
    assert SUITE.tasks({}) == SUITE.tasks({"perSkill": 60, "seed": 0})
    assert SUITE.tasks({"seed": 1}) != SUITE.tasks({})
    for skill in Skill:
        assert dev_scenarios(skill, 100)[:60] == dev_scenarios(skill, 60)


def test_task_ids_prompts_and_states_are_as_promised() -> None:
    tasks = SUITE.tasks({"perSkill": 100})
    assert len(tasks) == 100 * len(Skill)
    assert len({task.id for task in tasks}) == len({task.messages[0]["content"] for task in tasks}) == len(tasks)
    for task in tasks:
        assert re.fullmatch(rf"toolworld/{task.family}/[0-9a-f]{{12}}", task.id)
        assert [message["role"] for message in task.messages] == ["user"]
        assert json.loads(task.state)["skill"] == task.family


def test_numbers_that_an_error_names_are_never_one() -> None:
    assert {json.loads(task.state)["have"] for task in SUITE.tasks({})} == set(range(2, 10))


def test_tools_are_sorted_and_their_schemas_take_the_reference_calls() -> None:
    tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in SUITE.tools()}
    assert list(tools) == sorted(world.TOOL_ARGUMENTS)
    for solved in DEV:
        for call in reference_calls(solved):
            jsonschema.validate(call.arguments, tools[call.name])


def test_skills_can_be_chosen() -> None:
    assert {t.family for t in SUITE.tasks({"skills": ["buy", "weather"], "perSkill": 3})} == {
        "buy",
        "weather",
    }


@pytest.mark.parametrize(
    "params",
    [{"perskill": 3}, {"perSkill": 0}, {"perSkill": "many"}, {"skills": ["cooking"]}, {"skills": "buy"}],
)
def test_params_that_cannot_be_followed_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(SpecInvalid):
        SUITE.tasks(params)


def test_no_request_uses_a_word_of_its_tool() -> None:
    for solved in DEV:
        for call in reference_calls(solved)[-1:]:
            said = set(re.findall(r"[a-z]+", solved.prompt))
            assert not said & set(call.name.split("_")), solved.prompt


# ---- the corpus ----


def test_the_corpus_is_deterministic_and_differs_by_seed(generated: Any) -> None:
    assert corpus.generate(0) == generated
    assert corpus.generate(1)[0] != generated[0]


def test_rows_hold_no_truth_and_are_plain_json(generated: Any) -> None:
    rows, truth = generated
    assert set(truth) == {row["id"] for row in rows} and len(truth) == len(rows)
    for row in rows:
        assert json.loads(json.dumps(row)) == row
        assert set(row) == {"id", "source", "messages", "tools", "task", "outcome"}
        assert set(row["task"]) == {"id", "env", "prompt", "state", "tags"}
        assert set(row["outcome"]) == {"success"}


def test_rows_are_legal_conversations(generated: Any) -> None:
    """Each call is answered at once by its own result, and no result is an orphan."""
    for row in generated[0]:
        messages = row["messages"]
        assert messages[0] == {"role": "user", "content": row["task"]["prompt"]}
        assert messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
        for before, message in itertools.pairwise(messages):
            calls = before.get("tool_calls", [])
            assert (message["role"] == "tool") == bool(calls)
            if calls:
                assert message["tool_call_id"] == calls[0]["id"]
                assert message["name"] == calls[0]["function"]["name"]
            elif message["role"] == "user":
                assert before["content"].startswith("<tool_call>") and message["content"] == "error parse"


def test_the_truth_is_what_replaying_the_row_shows(generated: Any) -> None:
    rows, truth = generated
    for row in rows:
        environment = SUITE.environment(row["task"]["state"])
        for message in row["messages"]:
            for call in message.get("tool_calls", []):
                environment.call(call["function"]["name"], json.loads(call["function"]["arguments"]))
        entry = truth[row["id"]]
        assert row["task"]["tags"] == [entry.skill]
        assert environment.score("").success == float(entry.defect is Defect.CLEAN), row["id"]


def test_every_defect_and_every_kind_of_copy_is_planted(generated: Any) -> None:
    rows, truth = generated
    assert {entry.defect for entry in truth.values()} == set(Defect)
    assert Counter(e.duplicate for e in truth.values() if e.duplicate) == {Copy.EXACT: 90, Copy.NEAR: 40}
    by_skill = Counter(entry.skill for entry in truth.values())
    assert all(by_skill[skill] < 20 for skill in (Skill.STOCK, Skill.MONEY, Skill.ACCOUNT))
    wrong_flags = [row for row in rows if row["outcome"]["success"] != truth[row["id"]].good]
    assert 0.08 < len(wrong_flags) / len(rows) < 0.25
    assert all(row["outcome"]["success"] for row in rows if truth[row["id"]].defect is Defect.REFUNDED)


def test_copies_point_to_what_they_copy(generated: Any) -> None:
    rows, truth = generated
    by_id = {row["id"]: row for row in rows}
    for row_id, entry in truth.items():
        if entry.duplicate_of is None:
            continue
        copy, original = by_id[row_id], by_id[entry.duplicate_of]
        assert copy["messages"][1:] == original["messages"][1:]
        assert (copy["messages"] == original["messages"]) == (entry.duplicate is Copy.EXACT)
        assert copy["task"]["prompt"].endswith(original["task"]["prompt"])


def test_undeclared_rows_of_a_skill_are_distinct(generated: Any) -> None:
    rows, truth = generated
    prompts = Counter(row["task"]["prompt"] for row in rows if truth[row["id"]].duplicate is None)
    assert max(prompts.values()) == 1


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_corpus_prompt_is_a_dev_prompt_except_the_leaks(seed: int) -> None:
    rows, truth = corpus.generate(seed)
    default = {task.id: task for task in SUITE.tasks({})}
    leaked = [row for row in rows if truth[row["id"]].leaked]
    assert len(leaked) == corpus.LEAKS
    assert all(default[row["task"]["id"]].state == row["task"]["state"] for row in leaked)
    dev = {t.messages[0]["content"] for s in range(3) for t in SUITE.tasks({"perSkill": 200, "seed": s})}
    shared = [row for row in rows if row["task"]["prompt"] in dev]
    assert {row["id"] for row in shared} == {row["id"] for row in leaked}


def test_memory_can_learn_every_fact_that_a_task_needs() -> None:
    """Also those of cities and people that no ship or account row shows."""
    for seed in range(3):
        rows, _ = corpus.generate(seed)
        told = {
            tuple(message["content"].split()[1:])
            for row in rows
            for message in row["messages"]
            if message["role"] == "tool" and message["content"].startswith("ok ")
        }
        wanted = {(city, "code", fact("code", city)) for city in CITIES}
        wanted |= {(person, "pin", fact("pin", person)) for person in world.ACCOUNT_HOLDERS}
        assert wanted <= told
        shown = {row["task"]["prompt"] for row in rows if row["task"]["tags"] == [Skill.SHIP]}
        assert sum(any(city in prompt for prompt in shown) for city in CITIES) < len(CITIES)


def test_the_command_line_writes_rows_and_truth_apart(tmp_path: Path, generated: Any) -> None:
    rows_file, truth_file = tmp_path / "corpus.jsonl", tmp_path / "truth.json"
    command = [sys.executable, "-m", "curateevo_jobs.benchmarks.toolworld", "corpus", "--seed", "0"]
    subprocess.run([*command, "-o", str(rows_file), "--truth", str(truth_file)], check=True, timeout=60)
    assert [json.loads(line) for line in rows_file.read_text().splitlines()] == generated[0]
    assert json.loads(truth_file.read_text()) == corpus.truth_as_json(generated[1])


# ---- what the base model has and has not seen ----


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _four_grams(text: str) -> set[tuple[str, ...]]:
    words = _words(text)
    return set(zip(words, words[1:], words[2:], words[3:], strict=False))


def _all_task_four_grams() -> set[tuple[str, ...]]:
    """Of every prompt that the world can make."""
    grams: set[tuple[str, ...]] = set()
    for phrasings in PHRASINGS.values():
        for parts in itertools.product(OPENERS, phrasings, CLOSERS):
            template = "".join(parts)
            names = world.slot_names(template)
            drawn = [WORDS_BY_ARGUMENT.get(name, range(2, 100)) for name in names]
            for values in itertools.product(*drawn):
                grams |= _four_grams(template.format(**dict(zip(names, values, strict=True))))
    return grams


def test_the_pretraining_text_knows_no_tool_no_wording_and_no_fact_of_the_world() -> None:
    """A quarter of the very text that the base was trained on, regenerated."""
    wordings = _all_task_four_grams()
    facts = {city: fact("code", city) for city in CITIES} | {person: fact("pin", person) for person in PEOPLE}
    seen = 0
    for step in range(1, 1401, 4):
        # Odd and even steps: in the first phase every other one is all drills.
        for lesson in pretraining.batch(0, step + step // 4 % 2, 1400, 24):
            seen += 1
            assert not any(name in lesson.text for name in world.TOOL_ARGUMENTS)
            assert not _four_grams(lesson.text) & wordings
            for line in lesson.text.splitlines():
                words = set(re.findall(r"\w+", line))
                assert not any(facts[key] in words for key in facts.keys() & words)
    assert seen > 10_000


def test_the_separation_holds_by_construction() -> None:
    names = {f"{v}_{n}" for verbs, nouns in pretraining_words.NAME_FAMILIES for v in verbs for n in nouns}
    assert not names & set(world.TOOL_ARGUMENTS)
    strangers = {*pretraining_words.OTHER_CITIES, *pretraining_words.OTHER_PEOPLE}
    assert not strangers & {*CITIES, *PEOPLE}
    prompts = {word for solved in DEV for word in _words(solved.prompt)}
    assert not prompts & set(pretraining_words.NONSENSE)


def test_the_pretraining_text_is_deterministic() -> None:
    assert pretraining.batch(0, 900, 1400, 8) == pretraining.batch(0, 900, 1400, 8)
    assert pretraining.batch(0, 900, 1400, 8) != pretraining.batch(1, 900, 1400, 8)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(BASE)


def test_the_base_is_small_and_whole() -> None:
    files = {path.name for path in BASE.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= files
    assert sum(path.stat().st_size for path in BASE.iterdir()) < 3_200_000
    settings = json.loads((BASE / "config.json").read_text())
    assert settings["max_position_embeddings"] == 32768 and settings["head_dim"] >= 32


def test_every_value_is_one_token_and_no_tool_name_is(tokenizer: Any) -> None:
    values = {word for drawn in WORDS_BY_ARGUMENT.values() for word in drawn} | set(map(str, range(2, 100)))
    for value in values:
        in_call = tokenizer(f'"{value}"')["input_ids"]
        (token,) = tokenizer(value)["input_ids"]
        assert token in in_call and token in tokenizer(f"the {value}.")["input_ids"]
    made_up = pretraining.made_up_names(random.Random(0), 20)
    assert {len(tokenizer(name)["input_ids"]) for name in (*made_up, *world.TOOL_ARGUMENTS)} == {2}
    assert not set(world.TOOL_ARGUMENTS) & set(tokenizer.get_vocab())


def test_rows_fit_the_context_and_only_assistant_text_is_trained_on(tokenizer: Any, generated: Any) -> None:
    longest = 0
    encoded: Any = {}
    for row in generated[0][::3]:
        encoded = tokenizer.apply_chat_template(
            row["messages"], tools=row["tools"], return_dict=True, return_assistant_tokens_mask=True
        )
        longest = max(longest, len(encoded["input_ids"]))
    assert longest < 384
    trained = [t for t, m in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True) if m]
    assert tokenizer.decode(trained).count("<|im_end|>") == sum(m["role"] == "assistant" for m in row["messages"])


def test_the_base_loads_and_predicts(tokenizer: Any) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    prompt = [
        {"role": "system", "content": "notes:\nMilan code amber"},
        {"role": "user", "content": "fold zib Milan."},
    ]
    tools = [
        {"type": "function", "function": {"name": n, "parameters": {"properties": {k: {} for k in a}}}}
        for n, a in [("fold_leaf", ("city", "code")), ("move_table", ("item",))]
    ]
    encoded = tokenizer.apply_chat_template(
        prompt, tools=tools, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    with torch.no_grad():
        output = model.generate(**encoded, max_new_tokens=48, do_sample=False)
    answer = tokenizer.decode(output[0, encoded["input_ids"].shape[1] :])
    called = json.loads(answer.split("<tool_call>\n")[1].split("\n</tool_call>")[0])
    assert called == {"name": "fold_leaf", "arguments": {"city": "Milan", "code": "amber"}}
