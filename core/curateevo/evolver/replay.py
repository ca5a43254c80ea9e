"""The replay proposer: recorded policies, for tests and for running a published lineage again."""

from __future__ import annotations

from pathlib import Path

from curateevo.api.errors import ContractBroken
from curateevo.evolver.proposal import Proposal, ProposalInput


class ReplayProposer:
    """Round n gets `<n as three digits>.py` of a folder; where the files end, so do the proposals."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ContractBroken(f"proposer.replay: {folder} is no folder", "it should hold 001.py, 002.py, ...")
        self._folder = folder

    def propose(self, given: ProposalInput) -> Proposal | None:
        path = self._folder / f"{given.number:03d}.py"
        if not path.is_file():
            return None
        return Proposal(path.read_text(encoding="utf-8"), f"replay {path.name}", "recorded", "as it was")
