"""Who comes in: keys, their limits, and whether calls are taken at all. An ASGI layer in front of the API.

Knows no request bodies. The key of a call that came in stands in its scope's state, for those behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sssd.server.errors import ApiError
from sssd.server.keys import ApiKey, KeyRing
from sssd.server.lifecycle import Lifecycle
from sssd.server.limits import Limits

_BEHIND = ("/v1", "/tokenize", "/detokenize")  # what needs a key
RETRY = 5  # seconds until another try makes sense while loading or draining


def key_of(request: Request) -> ApiKey | None:
    """The client's key; None where the server has no keys."""
    key = request.scope.get("state", {}).get("key")
    assert key is None or isinstance(key, ApiKey)
    return key


class Gate:
    """Lets calls in, or answers them itself."""

    def __init__(self, app: ASGIApp, lifecycle: Lifecycle, keys: KeyRing | None) -> None:
        self._app = app
        self._lifecycle = lifecycle
        self._keys = keys
        self._limits = Limits()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry point."""
        if scope["type"] != "http" or not _needs_key(scope["path"]):
            await self._app(scope, receive, send)
            return
        try:
            key = self._known(Headers(scope=scope))
            scope.setdefault("state", {})["key"] = key
            with self._let_in(scope, key):
                await self._app(scope, receive, send)
        except ApiError as e:
            body = msgspec.json.encode(e.reply())
            headers = e.headers() | ({"www-authenticate": "Bearer"} if e.status == 401 else {})
            await Response(body, e.status, headers, media_type="application/json")(scope, receive, send)

    def _known(self, headers: Headers) -> ApiKey | None:
        if self._keys is None:
            return None
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not given:
            raise ApiError(401, "no API key: send it as  Authorization: Bearer KEY", code="missing_api_key")
        key = self._keys.find(given)
        if key is None:
            raise ApiError(401, "this API key is not known here: check it, or ask the operator", code="invalid_api_key")
        return key

    @contextmanager
    def _let_in(self, scope: Scope, key: ApiKey | None) -> Iterator[None]:
        phase = self._lifecycle.phase
        if phase != "ready":
            why = "the model is loading" if phase == "loading" else "the server is shutting down"
            raise ApiError(503, f"{why}: try again later", code=phase, retry_after=RETRY)
        if scope["method"] != "POST":
            yield
            return
        with self._lifecycle.call():
            if key is None:
                yield
                return
            refusal = self._limits.enter(key)
            if refusal is not None:
                raise ApiError(
                    429, f"{refusal.why}: try again later", code="rate_limit_exceeded", retry_after=refusal.retry_after
                )
            try:
                yield
            finally:
                self._limits.leave(key)


def _needs_key(path: str) -> bool:
    return path.startswith("/v1/") or path in _BEHIND
