"""Between an operator and its API server: passes everything on, until it is told not to.

    python -m tests.cluster.faultproxy --kubeconfig K --port P

The operator speaks plain HTTP to it. `POST /_fault/MODE` changes what happens from now on:

    none          pass on
    refuse        every request is answered 503; open watches are cut
    hang          requests are taken and never answered
    watch-error   open watches end with an ERROR event of code 500, and a re-list is answered 500 for a while
    watch-gone    open watches end with an ERROR event of code 410
    silent        watches stay open and say nothing more
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import time
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

HOP = {"transfer-encoding", "content-length", "connection", "host"}
RELIST_SECONDS = 25.0
"""How long a re-list fails after `watch-error`."""


class Proxy:
    def __init__(self, server: str, token: str, trust: ssl.SSLContext) -> None:
        self.server, self.token, self.trust = server, token, trust
        self.mode, self.since = "none", 0.0
        self.changed = asyncio.Event()

    async def set_mode(self, request: web.Request) -> web.Response:
        self.mode, self.since = request.match_info["mode"], time.monotonic()
        self.changed.set()
        self.changed = asyncio.Event()
        return web.Response(text=self.mode)

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        watching = request.query.get("watch") in ("true", "1")
        listing = request.method == "GET" and not watching and request.path.count("/") <= 5
        if self.mode == "refuse":
            return web.json_response({"kind": "Status", "message": "away", "code": 503}, status=503)
        if self.mode == "hang":
            await asyncio.sleep(3600)
        relisting = self.mode == "watch-error" and time.monotonic() - self.since < RELIST_SECONDS
        if relisting and (watching or listing):
            return web.json_response({"kind": "Status", "message": "broken", "code": 500}, status=500)
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP}
        headers["Authorization"] = f"Bearer {self.token}"
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(
                request.method,
                self.server + request.raw_path,
                headers=headers,
                data=await request.read() or None,
                ssl=self.trust,
                timeout=aiohttp.ClientTimeout(total=None),
            ) as answer,
        ):
            out = web.StreamResponse(
                status=answer.status, headers={k: v for k, v in answer.headers.items() if k.lower() not in HOP}
            )
            await out.prepare(request)
            await (self.copy_watch(answer, out) if watching else self.copy(answer, out))
            return out

    async def copy(self, answer: aiohttp.ClientResponse, out: web.StreamResponse) -> None:
        async for chunk in answer.content.iter_any():
            await out.write(chunk)

    async def copy_watch(self, answer: aiohttp.ClientResponse, out: web.StreamResponse) -> None:
        """Line by line, until the mode changes."""
        while True:
            changed = asyncio.ensure_future(self.changed.wait())
            line = asyncio.ensure_future(answer.content.readline())
            done, _ = await asyncio.wait({changed, line}, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            if line in done:
                if not line.result():
                    return
                if self.mode != "silent":
                    await out.write(line.result())
                continue
            line.cancel()
            if self.mode in ("watch-error", "watch-gone"):
                code = 500 if self.mode == "watch-error" else 410
                status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "broken"}
                await out.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
                return
            if self.mode == "refuse":
                return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", required=True, type=Path)
    parser.add_argument("--port", required=True, type=int)
    options = parser.parse_args()
    raw = yaml.safe_load(options.kubeconfig.read_text())
    cluster, user = raw["clusters"][0]["cluster"], raw["users"][0]["user"]
    trust = ssl.create_default_context(cafile=cluster["certificate-authority"])
    proxy = Proxy(cluster["server"], user["token"], trust)
    app = web.Application(client_max_size=32 << 20)
    app.router.add_post("/_fault/{mode}", proxy.set_mode)
    app.router.add_route("*", "/{path:.*}", proxy.pass_on)
    web.run_app(app, host="127.0.0.1", port=options.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
