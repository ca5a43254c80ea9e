"""The champion's resources for another trainer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import polars as pl

from curateevo.api.errors import ContractBroken, SpecInvalid
from curateevo.api.evolution import CurationEvolution, Stage
from curateevo.api.stage import ChampionPointer, Manifest, StoreRef
from curateevo.evolution.names import attempt_prefix, champion_key
from curateevo.store.artifacts import read_manifest
from curateevo.store.connect import connect
from curateevo.store.protocol import Store
from curateevo.trajectories.formats.atif import render_atif
from curateevo.trajectories.formats.openai import parse_openai
from curateevo.trajectories.model import JsonObject, RowInvalid

SFT, RL, MEMORY = "sft.jsonl", "rl.jsonl", "memory.jsonl"
MAX_ATTEMPTS = 200
VERL_DATASET = Path(__file__).with_name("verl_dataset.py")

Resources = Mapping[str, Sequence[JsonObject]]
"""Rows by file name, without sealed states."""


def export_champion(evolution: CurationEvolution, target: str, folder: Path) -> list[Path]:
    """Write the champion's resources as `target` takes them; sealed environment states are left out. Returns the files
    written. Raises SpecInvalid for an unknown target and ContractBroken when there is no champion."""
    if target not in TARGETS:
        raise SpecInvalid(f"export: no target called {target!r}", f"known: {', '.join(TARGETS)}")
    store = connect(StoreRef(uri=evolution.spec.storage.uri, endpoint=evolution.spec.storage.endpoint))
    uid = evolution.metadata.uid or ""
    tagged = store.read_tagged(champion_key(uid))
    if tagged is None:
        raise ContractBroken("this run has no champion yet", "let version 0 finish first")
    manifest = _curated(store, uid, ChampionPointer.model_validate_json(tagged.data).number)
    resources = {name: _rows(store, manifest, name) for name in (SFT, RL, MEMORY)}
    folder.mkdir(parents=True, exist_ok=True)
    return TARGETS[target](resources, folder)


def write_jsonl(resources: Resources, folder: Path) -> list[Path]:
    """The rows as the curate stage wrote them."""
    return [_write_lines(folder / name, rows) for name, rows in resources.items()]


def write_trl(resources: Resources, folder: Path) -> list[Path]:
    """SFT and GRPO rows of TRL's trainers: tools and references as JSON text. `masked` numbers the answers of an SFT
    row that carry no loss: TRL's own trainer does not look at it."""
    sft = [
        {"messages": row["messages"], "tools": _text(row["tools"]), "masked": row["masked"]} for row in resources[SFT]
    ]
    rl = [
        {
            "prompt": row["messages"],
            "tools": _text(row["tools"]),
            "reward": row["reward"],
            "reference": _text(row["reference"]),
        }
        for row in resources[RL]
    ]
    return write_jsonl({SFT: sft, RL: rl, MEMORY: resources[MEMORY]}, folder)


def write_atif(resources: Resources, folder: Path) -> list[Path]:
    """The SFT rows as ATIF v1.8, one document a line. Raises ContractBroken for a row that is no legal trajectory."""
    try:
        documents = [render_atif(parse_openai(row, str(row["id"]))) for row in resources[SFT]]
    except RowInvalid as error:
        raise ContractBroken(f"an SFT row is no trajectory: {error}") from error
    return [_write_lines(folder / "sft.atif.jsonl", documents)]


def write_verl(resources: Resources, folder: Path) -> list[Path]:
    """Parquet for verl 0.9: `sft.parquet` for its multi-turn SFT with the dataset class beside it, `rl.parquet` for its
    RL trainers. Every row has the same fields; whatever differs by tool is JSON text."""
    sft = [{"messages": row["messages"], "tools": _text(row["tools"])} for row in resources[SFT]]
    rl = [
        {
            "data_source": row["suite"] or "curateevo",
            "prompt": row["messages"],
            "ability": row["family"],
            "reward_model": {"style": "rule", "ground_truth": _text(row["reference"])},
            "extra_info": {
                "index": index,
                "id": row["id"],
                "task_id": row["task_id"],
                "reward": row["reward"],
                "tools": _text(row["tools"]),
            },
        }
        for index, row in enumerate(resources[RL])
    ]
    pl.DataFrame(sft, schema=VERL_SFT).write_parquet(folder / "sft.parquet")
    pl.DataFrame(rl, schema=VERL_RL).write_parquet(folder / "rl.parquet")
    dataset = shutil.copyfile(VERL_DATASET, folder / VERL_DATASET.name)
    memory = _write_lines(folder / MEMORY, resources[MEMORY])
    return [folder / "sft.parquet", folder / "rl.parquet", dataset, memory]


def write_agentgym(resources: Resources, folder: Path) -> list[Path]:
    """The items that AgentGym-RL's trainer rolls out in its own environments: the tasks of the RL rows by their ids,
    each once. Of use where the corpus was recorded in those environments. `rl.json` is their `*_train.json`."""
    items = [{"item_id": task} for task in dict.fromkeys(row["task_id"] for row in resources[RL])]
    path = folder / "rl.json"
    path.write_text(json.dumps(items, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return [path, _write_lines(folder / MEMORY, resources[MEMORY])]


def write_slime(resources: Resources, folder: Path) -> list[Path]:
    """Prompts of slime, as ProRL-Agent's server takes them by its bridge: what a rollout needs lies in `metadata`."""
    rl = [
        {
            "prompt": row["messages"],
            "label": _text(row["reference"]),
            "metadata": {key: row[key] for key in ("id", "task_id", "suite", "family", "reward", "tools")},
        }
        for row in resources[RL]
    ]
    return [_write_lines(folder / RL, rl), _write_lines(folder / MEMORY, resources[MEMORY])]


TARGETS: dict[str, Callable[[Resources, Path], list[Path]]] = {
    "trl": write_trl,
    "verl": write_verl,
    "slime": write_slime,
    "agentgym": write_agentgym,
    "atif": write_atif,
    "jsonl": write_jsonl,
}

_CALL = pl.Struct(
    {
        "id": pl.String(),
        "type": pl.String(),
        "function": pl.Struct({"name": pl.String(), "arguments": pl.String()}),
    }
)
_MESSAGES = pl.List(
    pl.Struct(
        {
            "role": pl.String(),
            "content": pl.String(),
            "reasoning_content": pl.String(),
            "tool_calls": pl.List(_CALL),
            "tool_call_id": pl.String(),
            "name": pl.String(),
        }
    )
)
VERL_SFT = {"messages": _MESSAGES, "tools": pl.String()}
VERL_RL = {
    "data_source": pl.String(),
    "prompt": _MESSAGES,
    "ability": pl.String(),
    "reward_model": pl.Struct({"style": pl.String(), "ground_truth": pl.String()}),
    "extra_info": pl.Struct(
        {
            "index": pl.Int64(),
            "id": pl.String(),
            "task_id": pl.String(),
            "reward": pl.String(),
            "tools": pl.String(),
        }
    ),
}


def _curated(store: Store, uid: str, number: int) -> Manifest:
    for attempt in range(1, MAX_ATTEMPTS):
        if (found := read_manifest(store, attempt_prefix(uid, Stage.CURATE, number, attempt))) is not None:
            return found
    raise ContractBroken(f"the resources of version {number} are not in the store")


def _rows(store: Store, manifest: Manifest, name: str) -> list[JsonObject]:
    rows = [json.loads(line) for line in store.read(manifest.file(name).ref).decode().split("\n") if line]
    return [{key: value for key, value in row.items() if key != "state"} for row in rows]


def _write_lines(path: Path, rows: Iterable[JsonObject]) -> Path:
    path.write_text("".join(_text(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
