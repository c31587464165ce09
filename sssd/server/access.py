"""Request ids and one log line a request: outermost of the ASGI layers. Owns what is told about a request.

Logs method, path, status, time and the client's name; no query, header, prompt or answer.
"""

from __future__ import annotations

import logging
import re
import secrets
from time import perf_counter

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sssd.server.meter import Meter

_log = logging.getLogger("sssd.access")
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_QUIET = ("/health", "/metrics", "/stats")  # asked for every few seconds; logged when they fail
GONE = 499  # the client went before there was an answer


class Access:
    """Gives every request an id, its own where `X-Request-Id` is sound, and logs how it went."""

    def __init__(self, app: ASGIApp, meter: Meter) -> None:
        self._app = app
        self._meter = meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry point."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else secrets.token_hex(12)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        began = perf_counter()
        status = GONE

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            if 400 <= status < 600:
                self._meter.refused[str(status)] += 1
            self._tell(scope, status, perf_counter() - began)

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        if (status < 400 and scope["path"] in _QUIET) or scope["path"] == "/ready":
            return
        fields = {
            "request_id": scope["state"]["request_id"],
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "ms": round(1000 * seconds, 1),
        }
        key = scope["state"].get("key")
        if key is not None:
            fields["client"] = key.name
        _log.log(logging.ERROR if status == 500 else logging.INFO, "request", extra={"fields": fields})
