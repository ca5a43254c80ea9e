"""The exception tree. The class of an error says who acts on it.

CurateEvoError
├── SpecInvalid        the user: the YAML must change
├── ContractBroken     us or the data: bad input to a stage, never repaired in silence
│   ├── ArtifactCorrupt    a digest or a size does not match
│   ├── CorpusInvalid      too many rows could not be read
│   └── PolicyRejected     the policy broke its contract: a result, fed to the evolver
├── Transient          nobody: try again later
│   └── StoreUnavailable
├── Denied             an admin: credentials, permissions, quota, a full disk
└── Conflict           somebody else wrote first
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a stage program ends (sysexits.h where one fits)."""

    OK = 0
    BUG = 1
    CONTRACT_BROKEN = 65
    TRANSIENT = 75
    DENIED = 77


class CurateEvoError(Exception):
    """The root. `hint` tells how to mend it."""

    exit_code = ExitCode.BUG

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class SpecInvalid(CurateEvoError):
    """The spec asks for something that can't be; carries one line per problem."""

    exit_code = ExitCode.CONTRACT_BROKEN


class ContractBroken(CurateEvoError):
    """Input that breaks its contract; trying again gives the same."""

    exit_code = ExitCode.CONTRACT_BROKEN


class ArtifactCorrupt(ContractBroken):
    """A stored object's size or digest is not what its manifest says."""


class CorpusInvalid(ContractBroken):
    """More rows could not be read than the spec allows, or none could."""


class PolicyRejected(ContractBroken):
    """A policy broke its contract. `rule` is the rule's name, `line` the line in the policy when known."""

    def __init__(self, rule: str, message: str, hint: str = "", line: int | None = None) -> None:
        where = f" (line {line})" if line else ""
        super().__init__(f"{rule}{where}: {message}", hint)
        self.rule = rule
        self.line = line


class Transient(CurateEvoError):
    """Unavailable, throttled, timed out or preempted."""

    exit_code = ExitCode.TRANSIENT


class StoreUnavailable(Transient):
    """The artifact store does not answer."""


class Denied(CurateEvoError):
    """Forbidden, out of quota or disk, or wrong credentials."""

    exit_code = ExitCode.DENIED


class Conflict(CurateEvoError):
    """A conditional write lost: the object exists, or its tag has moved."""

    exit_code = ExitCode.TRANSIENT
