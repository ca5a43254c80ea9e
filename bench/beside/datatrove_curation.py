"""What `bench.curation` has datatrove do: RAW.jsonl OUT_FOLDER TURNS THRESHOLD. Runs in datatrove's environment.

Its MinHash has bands rather than a threshold: with six of eleven hashes, about two thirds of the pairs with a
similarity of .85 meet.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from chats import count, last_turns, record
from datatrove.data import Document, DocumentsPipeline
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import minhash
from datatrove.pipeline.dedup.exact_dedup import (
    ExactDedupConfig,
    ExactDedupFilter,
    ExactDedupSignature,
    ExactFindDedups,
)
from datatrove.pipeline.dedup.minhash import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.readers import JsonlReader

MINHASH = MinhashConfig(num_buckets=6, hashes_per_bucket=11)


class Words:
    """Faster than datatrove's own tokenizer of English, which is spaCy's."""

    def word_tokenize(self, text: str) -> list[str]:
        return text.split()


def content(document: Document) -> str:
    return document.text


EXACT = ExactDedupConfig(content_getter=content)


def adapt(self: Any, data: dict[str, Any], path: str, number: int | str) -> dict[str, Any]:
    row = record(json.dumps(data))
    return {"text": row["text"], "id": str(number), "metadata": {"raw": row["raw"], "success": row["success"]}}


def successes(data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
    return (document for document in data if document.metadata["success"])


def main() -> None:
    raw, out, turns = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    step = {name: str(out / name) for name in ("exact", "duplicates", "signatures", "buckets", "clusters")}
    minhash.load_word_tokenizer = lambda language: Words()
    signature = MinhashDedupSignature(step["signatures"], MINHASH)

    def write(data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        profile: Counter[str] = Counter()
        with (out / "kept.jsonl").open("w") as file:
            for document in data:
                text = last_turns(document.metadata["raw"], turns)
                count(text, profile)
                file.write(text + "\n")
                yield document
        print(dict(profile))

    def source() -> list[Any]:
        return [JsonlReader(str(raw.parent), glob_pattern=raw.name, adapter=adapt), successes]

    unique = [*source(), ExactDedupFilter(step["duplicates"], EXACT)]
    for number, steps in enumerate(
        (
            [*source(), ExactDedupSignature(step["exact"], EXACT)],
            [ExactFindDedups(step["exact"], step["duplicates"], EXACT)],
            [*unique, signature],
            [MinhashDedupBuckets(step["signatures"], step["buckets"], config=MINHASH)],
            [MinhashDedupCluster(step["buckets"], step["clusters"], config=MINHASH)],
            [*unique, MinhashDedupFilter(step["clusters"]), write],
        )
    ):
        tasks = MINHASH.num_buckets if number == 3 else 1
        LocalPipelineExecutor(steps, tasks=tasks, workers=1, logging_dir=str(out / f"log-{number}")).run()


if __name__ == "__main__":
    main()
