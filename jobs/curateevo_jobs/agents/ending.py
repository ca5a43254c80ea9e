"""How a model server hears that it is not asked any more: it ends, and its GPU is free for the next subject's.

The evaluator posts to `PATH`; the server leaves a mark; the program that started it sees that and ends well.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, TypeAlias
from urllib.request import Request, urlopen

PATH = "/curateevo/end"
MARK_VARIABLE = "CURATEEVO_END_MARK"
"""Of the server: the file that it makes."""
END_SECONDS = 5.0
Event: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]
App: TypeAlias = Callable[[Event, Receive, Send], Awaitable[None]]


class Ending:
    """ASGI middleware of vLLM's server (`--middleware`)."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        Path(os.environ[MARK_VARIABLE]).touch()
        await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


def end_server(base_url: str) -> None:
    """Tell the server that it may end. One that does not hear it is ended with the evaluation."""
    request = Request(base_url.removesuffix("/v1") + PATH, data=b"", method="POST")
    with contextlib.suppress(OSError):
        urlopen(request, timeout=END_SECONDS).close()
