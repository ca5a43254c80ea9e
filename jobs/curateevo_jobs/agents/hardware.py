"""What this machine has, asked without torch."""

from __future__ import annotations

import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"


def count_gpus() -> int:
    """NVIDIA devices that this process can see."""
    return sum(path.name.removeprefix("nvidia").isdigit() for path in Path("/dev").glob("nvidia*"))


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port
