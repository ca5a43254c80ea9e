"""What an operator can be told, by flags and environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from curateevo_operator.render.settings import RenderSettings


@dataclass(frozen=True, slots=True)
class Settings:
    """`namespaces`: where evolutions are looked for; none: in all of them."""

    render: RenderSettings
    namespaces: tuple[str, ...] = ()
    concurrency: int = 8
    """Evolutions that are worked on at once."""
    resync_seconds: float = 300.0
    """An evolution is looked at again at least this often."""
    list_seconds: float = 60.0
    """How often all evolutions are listed, whatever the watch says."""
    port: int = 8080
    """Of /metrics, /healthz and /readyz."""
    host: str = "0.0.0.0"
    own_identity: bool = False
    """Whether evolutions without a storage Secret may use the operator's own identity."""
    log_format: Literal["json", "text"] = field(default="json")
    log_level: str = "INFO"
