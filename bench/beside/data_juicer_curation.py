"""What `bench.curation` has Data-Juicer do: RAW.jsonl OUT_FOLDER TURNS THRESHOLD. Runs in Data-Juicer's environment."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from chats import count, last_turns, record
from data_juicer.core.data import NestedDataset
from data_juicer.ops.deduplicator.document_deduplicator import DocumentDeduplicator
from data_juicer.ops.deduplicator.document_minhash_deduplicator import DocumentMinhashDeduplicator


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
    with (out / "kept.jsonl").open("w") as file:
        for row in data:
            count(row["raw"], profile)
            file.write(row["raw"] + "\n")
    print(dict(profile))


if __name__ == "__main__":
    main()
