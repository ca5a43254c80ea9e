"""The champion's resources for another trainer."""

from __future__ import annotations

import json
from pathlib import Path

from curateevo.api.errors import ContractBroken, SpecInvalid
from curateevo.api.evolution import CurationEvolution, Stage
from curateevo.api.stage import ChampionPointer, Manifest, StoreRef
from curateevo.evolution.names import attempt_prefix, champion_key
from curateevo.store.artifacts import read_manifest
from curateevo.store.connect import connect
from curateevo.store.protocol import Store
from curateevo.trajectories.model import JsonObject

TARGETS = ("trl", "jsonl")
MAX_ATTEMPTS = 200


def export_champion(evolution: CurationEvolution, target: str, folder: Path) -> list[Path]:
    """Write sft.jsonl, rl.jsonl and memory.jsonl. `trl`: rows as TRL's trainers take them, tools as JSON text;
    `jsonl`: as the curate stage wrote them. Sealed environment states are left out of both. `masked` numbers the
    answers of an SFT row that carry no loss: TRL's own trainer does not look at it."""
    if target not in TARGETS:
        raise SpecInvalid(f"export: no target called {target!r}", f"known: {', '.join(TARGETS)}")
    store = connect(StoreRef(uri=evolution.spec.storage.uri, endpoint=evolution.spec.storage.endpoint))
    uid = evolution.metadata.uid or ""
    tagged = store.read_tagged(champion_key(uid))
    if tagged is None:
        raise ContractBroken("this run has no champion yet", "let version 0 finish first")
    number = ChampionPointer.model_validate_json(tagged.data).number
    manifest = _curated(store, uid, number)
    folder.mkdir(parents=True, exist_ok=True)
    out = []
    for name in ("sft.jsonl", "rl.jsonl", "memory.jsonl"):
        rows = [json.loads(line) for line in store.read(manifest.file(name).ref).decode().splitlines()]
        path = folder / name
        text = "".join(json.dumps(_row(row, name, target), ensure_ascii=False) + "\n" for row in rows)
        path.write_text(text, encoding="utf-8")
        out.append(path)
    return out


def _curated(store: Store, uid: str, number: int) -> Manifest:
    for attempt in range(1, MAX_ATTEMPTS):
        if (found := read_manifest(store, attempt_prefix(uid, Stage.CURATE, number, attempt))) is not None:
            return found
    raise ContractBroken(f"the resources of version {number} are not in the store")


def _row(row: JsonObject, name: str, target: str) -> JsonObject:
    row = {key: value for key, value in row.items() if key != "state"}
    if target == "jsonl" or name == "memory.jsonl":
        return row
    tools = json.dumps(row["tools"], ensure_ascii=False)
    if name == "sft.jsonl":
        return {"messages": row["messages"], "tools": tools, "masked": row["masked"]}
    return {
        "prompt": row["messages"],
        "tools": tools,
        "reward": row["reward"],
        "reference": json.dumps(row["reference"]),
    }
