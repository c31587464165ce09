"""What the server says about itself: health, readiness, numbers, and the page at /. The rest goes to the API.

Knows no request bodies. Works while the model still loads, when there is no API yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib import resources

import msgspec
from prometheus_client import exposition
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sssd.server.errors import ApiError
from sssd.server.gauges import Gauges
from sssd.server.lifecycle import Lifecycle
from sssd.server.meter import Meter
from sssd.server.prometheus import registry
from sssd.server.statistics import statistics

PAGE = {  # path -> (file, media type)
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SAFETY = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class Front:
    """An ASGI application in front of `api`, which is set when the model is loaded."""

    def __init__(self, lifecycle: Lifecycle, meter: Meter, gauges: Callable[[], Gauges]) -> None:
        """`gauges` may wait for a disk; it is called on a thread of its own."""
        self.api: ASGIApp | None = None
        self.loop_lives: Callable[[], bool] = lambda: True  # whether the thread that computes still runs
        self._lifecycle = lifecycle
        self._meter = meter
        self._gauges = gauges
        self._own: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/health": self._health,
            "/ready": self._ready,
            "/metrics": self._metrics,
            "/stats": self._stats,
        }
        self._page = {path: _file(name, kind) for path, (name, kind) in PAGE.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry point."""
        assert scope["type"] == "http", "lifespans and web sockets are switched off"
        path = scope["path"]
        if scope["method"] in ("GET", "HEAD"):
            if path in self._page:
                await self._page[path](scope, receive, send)
                return
            if path in self._own:
                response = await self._own[path](Request(scope, receive))
                await response(scope, receive, send)
                return
        if self.api is not None:
            await self.api(scope, receive, send)
            return
        await _refused(ApiError(404, f"{scope['method']} {path}: there is nothing here"))(scope, receive, send)

    async def _health(self, request: Request) -> Response:
        if not self.loop_lives():
            return _refused(ApiError(503, "the loop's thread has died: restart the server", code="dead"))
        return Response(b'{"status":"ok"}', media_type="application/json")

    async def _ready(self, request: Request) -> Response:
        phase = self._lifecycle.phase
        if phase != "ready" or not self.loop_lives():
            why = {"loading": "the model is loading", "draining": "the server is shutting down"}
            return _refused(ApiError(503, why.get(phase, "the loop's thread has died"), code=phase, retry_after=1))
        return Response(b'{"status":"ready"}', media_type="application/json")

    async def _metrics(self, request: Request) -> Response:
        gauges = await asyncio.to_thread(self._gauges)
        encode, kind = exposition.choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry(self._meter, lambda: gauges)), headers={"content-type": kind})

    async def _stats(self, request: Request) -> Response:
        gauges = await asyncio.to_thread(self._gauges)
        body = msgspec.json.encode(statistics(self._lifecycle.phase, gauges, self._meter))
        return Response(body, headers={"cache-control": "no-store"}, media_type="application/json")


def _file(name: str, kind: str) -> Response:
    data = resources.files("sssd.server").joinpath("page", name).read_bytes()
    return Response(data, headers={**_SAFETY, "content-type": kind})


def _refused(error: ApiError) -> Response:
    return Response(msgspec.json.encode(error.reply()), error.status, error.headers(), media_type="application/json")
