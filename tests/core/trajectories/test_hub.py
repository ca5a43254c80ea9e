"""Public data sets: read from small files in their layout, and refused in words where no hub can be reached."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import huggingface_hub.constants
import pytest

from curateevo.api.errors import CorpusInvalid, Transient
from curateevo.trajectories.hub import read_hub
from curateevo.trajectories.model import Trajectory
from curateevo.trajectories.reading import SetAside
from tests.core.trajectories.sources import sort_out


def adp_row(name: str, *, tail: str = "message_action") -> dict[str, object]:
    return {
        "id": name,
        "content": [
            {"class_": "text_observation", "source": "user", "content": "count the files"},
            {"class_": "code_action", "language": "bash", "content": "ls | wc -l", "description": "count"},
            {"class_": "text_observation", "source": "environment", "content": "3"},
            {"class_": tail, "content": "There are 3."},
        ],
        "details": {"resolved": "True"},
    }


def test_adp_rows_become_turns_with_their_outcome(tmp_path: Path) -> None:
    path = tmp_path / "agenttuning_os" / "full_std.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(r) + "\n" for r in (adp_row("a"), adp_row("b", tail="dream"), adp_row("c"))))
    reading = sort_out(read_hub(f"hub://adp?config=agenttuning_os&root={tmp_path}"))
    [t] = reading.trajectories
    assert (t.id, t.format, t.licence, t.outcome.success) == ("agenttuning_os/a", "adp", None, True)
    assert t.turns[0].calls[0].parsed() == {"command": "ls | wc -l"} and t.turns[0].results == ("3",)
    assert [x["function"]["name"] for x in t.tools] == ["execute_bash"]
    [aside] = reading.set_aside
    assert (aside.file, aside.line) == ("hub://adp", 2)
    assert "unsupported class_ 'dream'; no further run was read" in aside.reason


def test_agent_reward_bench_runs_take_the_next_page_as_result(tmp_path: Path) -> None:
    where = ("webarena", "GenericAgent-gpt-4o", "exp", "webarena.7.json")
    path = tmp_path.joinpath("cleaned", *where)
    path.parent.mkdir(parents=True)
    page = {"url": "u", "axtree": "page"}
    steps = [
        {"num": 0, "action": "click('a1')", "reasoning": "open it", "chat_messages": [], **page},
        {"num": 1, "action": "send_msg_to_user('42')", "reasoning": "answer", "chat_messages": [], **page},
    ]
    path.write_text(json.dumps({"benchmark": "webarena", "agent": where[1], "goal": "what is it?", "steps": steps}))
    fields = ("trajectory_success", "trajectory_side_effect", "trajectory_optimality", "trajectory_looping")
    row = {"benchmark": where[0], "model_name": where[1], "task_id": "webarena.7", "annotator_name": "x"}
    row |= dict.fromkeys(fields, "No") | {"trajectory_success": "Successful"}
    (tmp_path / "data").mkdir()
    with (tmp_path / "data" / "annotations.csv").open("w", newline="") as out:
        writer = csv.DictWriter(out, row)
        writer.writeheader()
        writer.writerow(row)
    [t] = list(read_hub(f"hub://agent_reward_bench?root={tmp_path}"))
    assert isinstance(t, Trajectory)
    assert (t.head, t.outcome.success, [c.name for u in t.turns for c in u.calls]) == (
        ("what is it?",),
        True,
        ["click", "send_msg_to_user"],
    )
    assert t.turns[1].results == ("",)


def test_tau_bench_runs_of_the_hub(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "policy"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
        {"role": "assistant", "content": "Done."},
    ]
    run = {
        "task_name": "airline",
        "messages": messages,
        "meta": {"id": "airline_3", "task_description": {"instruction": "book"}},
        "eval_result": {"db_match": True, "score": 1.0},
    }
    (tmp_path / "gpt-5.jsonl").write_text(json.dumps(run) + "\n" + json.dumps({**run, "messages": []}) + "\n")
    reading = sort_out(read_hub(f"hub://tau_bench?root={tmp_path}&limit=2"))
    [t] = reading.trajectories
    assert (t.task.id, t.outcome.success, t.outcome.reward) == ("airline/3", True, 1.0)
    assert [str(s) for s in reading.set_aside] == ["hub://tau_bench:2: gpt-5/airline/3: no assistant message"]


@pytest.mark.parametrize(
    ("uri", "reason"),
    [("hub://nothing", "no data set called 'nothing'"), ("hub://adp?limit=x", "limit must be a whole number")],
)
def test_unknown_names_and_options_are_refused(uri: str, reason: str) -> None:
    with pytest.raises(CorpusInvalid, match=reason):
        next(read_hub(uri))


def test_without_a_hub_it_says_so_and_names_the_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("AGENTPILE_CACHE", str(tmp_path))
    with pytest.raises(Transient, match="can't be reached") as caught:
        next(read_hub("hub://swe_smith?limit=1"))
    assert "hub://swe_smith?root=FOLDER" in caught.value.hint


def test_a_wrong_option_of_a_data_set_is_named(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    [aside] = list(read_hub(f"hub://adp?config=nothing&root={tmp_path}"))
    assert isinstance(aside, SetAside) and "config must be one of" in aside.reason
