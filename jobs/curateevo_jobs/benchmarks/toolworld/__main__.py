"""`python -m curateevo_jobs.benchmarks.toolworld corpus|pretrain`: write a corpus, or make the base model."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

from curateevo_jobs.benchmarks.toolworld.corpus import generate, truth_as_json


def main() -> None:
    """Parse the command line and run the command."""
    parser = argparse.ArgumentParser(prog="toolworld", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    corpus = commands.add_parser("corpus", help="write a corpus, and the truth about it to a file of its own")
    corpus.add_argument("--seed", type=int, default=0)
    corpus.add_argument("-o", "--out", type=Path, required=True)
    corpus.add_argument("--truth", type=Path, required=True)
    base = commands.add_parser("pretrain", help="make the base model")
    base.add_argument("out", type=Path)
    base.add_argument("--steps", type=int)
    arguments = parser.parse_args()
    if arguments.command == "corpus":
        write_corpus(arguments.seed, arguments.out, arguments.truth)
        return
    # Only this command needs torch.
    from curateevo_jobs.benchmarks.toolworld import pretrain

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    pretrain.pretrain(arguments.out, steps=arguments.steps or pretrain.STEPS)


def write_corpus(seed: int, out: Path, truth_out: Path) -> None:
    """Write a corpus as JSON lines and its truth as one JSON object by row id."""
    rows, truth = generate(seed)
    out.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    truth_out.write_text(json.dumps(truth_as_json(truth), indent=1) + "\n")


if __name__ == "__main__":
    main()
