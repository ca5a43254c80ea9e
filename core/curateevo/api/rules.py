"""Rules that cross fields: one list for `curateevo validate` (the check) and for the CRD (the CEL expression)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from curateevo.api.spec import EvolutionSpec, ProposerType

SPLIT_TOLERANCE = 1e-6
MODEL_SCHEMES = ("hf://", "s3://", "pvc://", "file://", "builtin://")

FIXED = (
    "spec.corpus",
    "spec.model",
    "spec.evaluation",
    "spec.objective",
    "spec.training.seed",
    "spec.training.repeats",
    "spec.memory",
    "spec.serving.engine",
    "spec.storage",
)
"""Fields that can't change: a candidate is compared with scores, costs and artifacts that were made under them. Each is
required or has a default, so that it is always there. The recipe (sft, grpo) can change: a run that goes out of memory
is to be mended; each version pins what it was trained with."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`path` is the field that a person mends; `cel` is evaluated on the spec as `self`."""

    path: str
    message: str
    cel: str
    holds: Callable[[EvolutionSpec], bool]


def _splits_sum(spec: EvolutionSpec) -> bool:
    splits = spec.evaluation.splits
    return 1.0 - SPLIT_TOLERANCE < splits.diag + splits.sel + splits.test < 1.0 + SPLIT_TOLERANCE


def _one_initial_policy(spec: EvolutionSpec) -> bool:
    initial = spec.policy.initial
    return sum(x is not None for x in (initial.builtin, initial.config_map_key_ref, initial.uri)) == 1


def _horizon_grows(spec: EvolutionSpec) -> bool:
    pairs = product(spec.training.grpo.horizon, repeat=2)
    return all((a.from_step < b.from_step) == (a.max_turns < b.max_turns) for a, b in pairs)


RULES: tuple[Rule, ...] = (
    Rule(
        "spec.evaluation.splits",
        "diag, sel and test must add up to 1, e.g. {diag: 0.4, sel: 0.4, test: 0.2}",
        "self.evaluation.splits.diag + self.evaluation.splits.sel + self.evaluation.splits.test > 0.999999 && "
        "self.evaluation.splits.diag + self.evaluation.splits.sel + self.evaluation.splits.test < 1.000001",
        _splits_sum,
    ),
    Rule(
        "spec.evaluation.splits.sel",
        "sel must be above 0: it gives the score",
        "self.evaluation.splits.sel > 0.0",
        lambda s: s.evaluation.splits.sel > 0,
    ),
    Rule(
        "spec.policy.initial",
        "exactly one of builtin, configMapKeyRef and uri must be set",
        "[has(self.policy.initial.builtin), has(self.policy.initial.configMapKeyRef), "
        "has(self.policy.initial.uri)].filter(x, x).size() == 1",
        _one_initial_policy,
    ),
    Rule(
        "spec.corpus.grace",
        "must be true for policy.initial.builtin grace, which selects by these scores",
        "!has(self.policy.initial.builtin) || self.policy.initial.builtin != 'grace' || self.corpus.grace",
        lambda s: s.policy.initial.builtin != "grace" or s.corpus.grace,
    ),
    Rule(
        "spec.model.base",
        "must begin with hf://, s3://, pvc://, file:// or builtin://, e.g. builtin://toolworld",
        "self.model.base.matches('^(hf|s3|pvc|file|builtin)://')",
        lambda s: s.model.base.startswith(MODEL_SCHEMES),
    ),
    Rule(
        "spec.model.base",
        "an hf:// model must pin its revision, e.g. hf://Qwen/Qwen3-4B@1cfa9a7",
        "!self.model.base.startsWith('hf://') || self.model.base.matches('@[^@/]+$')",
        lambda s: not s.model.base.startswith("hf://") or bool(re.search(r"@[^@/]+\Z", s.model.base)),
    ),
    Rule(
        "spec.storage.uri",
        "must begin with s3:// or file://, e.g. s3://bucket/prefix",
        "self.storage.uri.matches('^(s3|file)://')",
        lambda s: s.storage.uri.startswith(("s3://", "file://")),
    ),
    Rule(
        "spec.proposer.llm",
        "must be set for proposer.type llm and agent, e.g. {baseURL: http://llm.infra.svc/v1, model: my-model}",
        "!(self.proposer.type in ['llm', 'agent']) || has(self.proposer.llm)",
        lambda s: not s.proposer.type.asks_model or s.proposer.llm is not None,
    ),
    Rule(
        "spec.proposer.nameClusters",
        "needs a model to ask: proposer.type llm or agent",
        "!self.proposer.nameClusters || self.proposer.type in ['llm', 'agent']",
        lambda s: not s.proposer.name_clusters or s.proposer.type.asks_model,
    ),
    Rule(
        "spec.proposer.agent",
        "must be set for proposer.type agent, e.g. {command: [my-agent, --task-file, TASK.md]}",
        "self.proposer.type != 'agent' || has(self.proposer.agent)",
        lambda s: s.proposer.type is not ProposerType.AGENT or s.proposer.agent is not None,
    ),
    Rule(
        "spec.deadlines.proposeSeconds",
        "must be above proposer.agent.timeoutSeconds, e.g. by 600: the stage reads its inputs and writes its artifact",
        "self.proposer.type != 'agent' || !has(self.proposer.agent) || "
        "self.deadlines.proposeSeconds > self.proposer.agent.timeoutSeconds",
        lambda s: (
            s.proposer.type is not ProposerType.AGENT
            or s.proposer.agent is None
            or s.deadlines.propose_seconds > s.proposer.agent.timeout_seconds
        ),
    ),
    Rule(
        "spec.sandbox.isolation",
        "must be Container with spec.augmentation: a policy in a pod of its own has no second pass",
        "!has(self.augmentation) || self.sandbox.isolation == 'Container'",
        lambda s: s.augmentation is None or s.sandbox.isolation == "Container",
    ),
    Rule(
        "spec.proposer.replay",
        "must be set for proposer.type replay: a directory with 001.py, 002.py, ...",
        "self.proposer.type != 'replay' || has(self.proposer.replay)",
        lambda s: s.proposer.type is not ProposerType.REPLAY or s.proposer.replay is not None,
    ),
    Rule(
        "spec.training",
        "at least one of sft.enabled and grpo.enabled must be true",
        "self.training.sft.enabled || self.training.grpo.enabled",
        lambda s: s.training.sft.enabled or s.training.grpo.enabled,
    ),
    Rule(
        "spec.training.grpo.horizon",
        "maxTurns must grow with fromStep, e.g. [{fromStep: 0, maxTurns: 5}, {fromStep: 100, maxTurns: 10}]",
        "self.training.grpo.horizon.all(a, self.training.grpo.horizon.all(b, "
        "(a.fromStep < b.fromStep) == (a.maxTurns < b.maxTurns)))",
        _horizon_grows,
    ),
    Rule(
        "spec.objective.lambda",
        "must be above 0 when rounds.focus holds Efficiency: otherwise a smaller C is worth nothing",
        "self.objective.lambda > 0.0 || !('Efficiency' in self.rounds.focus)",
        lambda s: s.objective.lambda_ > 0 or "Efficiency" not in s.rounds.focus,
    ),
)


def broken_rules(spec: EvolutionSpec) -> tuple[Rule, ...]:
    """The rules that `spec` breaks, in the order of the list."""
    return tuple(rule for rule in RULES if not rule.holds(spec))


def changed_fixed(old: EvolutionSpec, new: EvolutionSpec) -> tuple[str, ...]:
    """The paths of FIXED at which `new` differs from `old`."""
    return tuple(path for path in FIXED if _at(old, path) != _at(new, path))


def _at(spec: EvolutionSpec, path: str) -> object:
    value: object = spec
    for name in path.split(".")[1:]:
        value = getattr(value, name)
    return value
