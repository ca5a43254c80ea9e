"""What `bench.curation` has Data-Juicer do: RAW.jsonl OUT.jsonl TURNS THRESHOLD. Runs in Data-Juicer's environment."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from data_juicer.core.data import NestedDataset
from data_juicer.ops.deduplicator.document_deduplicator import DocumentDeduplicator
from data_juicer.ops.deduplicator.document_minhash_deduplicator import DocumentMinhashDeduplicator


def record(line: str) -> dict[str, Any]:
    """Messages as text, as Data-Juicer's operators take it: nested tools would be merged by Arrow."""
    row = json.loads(line)
    said = [str(m.get("content") or "") + json.dumps(m.get("tool_calls") or "") for m in row["messages"]]
    return {"text": "\n".join(said), "raw": line, "success": bool(row["success"])}


def last_turns(line: str, turns: int) -> str:
    row = json.loads(line)
    answers = [n for n, m in enumerate(row["messages"]) if m["role"] == "assistant"]
    if len(answers) > turns:
        first = answers[0]
        row["messages"] = row["messages"][:first] + row["messages"][answers[-turns] :]
    return json.dumps(row)


def main() -> None:
    raw, out, turns, threshold = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    with raw.open() as file:
        data = NestedDataset.from_list([record(line) for line in file])
    data = data.filter(lambda row: row["success"])
    for operator in (
        DocumentDeduplicator(),
        DocumentMinhashDeduplicator(num_permutations=64, jaccard_threshold=threshold),
    ):
        data = data.map(operator.compute_hash)
        data, _ = operator.process(data)
    data = data.map(lambda row: {"raw": last_turns(row["raw"], turns)})
    profile: Counter[str] = Counter()
    with out.open("w") as file:
        for row in data:
            messages = json.loads(row["raw"])["messages"]
            profile["turns"] += sum(m["role"] == "assistant" for m in messages)
            profile.update(c["function"]["name"] for m in messages for c in m.get("tool_calls") or ())
            file.write(row["raw"] + "\n")
    print(dict(profile))


if __name__ == "__main__":
    main()
