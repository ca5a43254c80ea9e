"""Diagnosis by rules on typed turns: what went wrong in failed episodes, each claim with a quote."""

from curateevo.evolver.diagnosis.clusters import Cluster, Diagnosis, Evidence, Finding, diagnose, parse_jsonl
from curateevo.evolver.diagnosis.modes import FailureFamily, Mode

__all__ = ["Cluster", "Diagnosis", "Evidence", "FailureFamily", "Finding", "Mode", "diagnose", "parse_jsonl"]
