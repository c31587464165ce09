"""Delivery: server-sent events, and noticing that a client has gone. Owns the bytes of a stream.

Knows no endpoint. A client that is slow to read holds up its own coroutine and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sssd.answer import Completion
from sssd.server.errors import ApiError
from sssd.server.exchange import Event, Exchange
from sssd.server.serving import Call
from sssd.server.trace import trace_of
from sssd.server.usage import metrics_of, usage_of

T = TypeVar("T")
WAITING = b": waiting\n\n"  # a comment, so that proxies do not take a queued call for a dead one
DONE = b"data: [DONE]\n\n"


class ClientGone(Exception):
    """Nobody is there to read the answer."""


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; when the client goes first, the work is cancelled. Raises ClientGone."""
    doing = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait({doing, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientGone
        return doing.result()
    finally:
        await _cancelled(doing, gone)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class EventStream(Response):
    """A response that sends events as they come, and closes their source when the client goes."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.headers["cache-control"] = "no-cache"
        self.headers["x-accel-buffering"] = "no"  # a proxy that collects events defeats them
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry point."""
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            await _cancelled(sending, gone)

    async def _send(self, send: Send) -> None:
        async with aclosing(self._events) as events:  # type: ignore[type-var]
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def events_of(exchange: Exchange, call: Call) -> AsyncIterator[bytes]:
    """The stream of a call, which is closed at the end."""
    streaming = exchange.streaming
    assert streaming is not None
    encode = msgspec.json.Encoder().encode

    def sse(event: Event) -> bytes:
        if streaming.usage_always:
            event.usage = usage_of(call.stats(), exchange.n, silent=exchange.silent)
        elif streaming.usage:
            event.usage = None
        return b"data: " + encode(event) + b"\n\n"

    try:
        for event in exchange.opening():
            yield sse(event)
        async for part in call.parts():
            if part is None:
                yield WAITING
                continue
            if part.piece.completion is not None and (error := failure(part.piece.completion)):
                yield b"data: " + encode(error.reply()) + b"\n\n"
                break
            event = exchange.event(part)
            if streaming.trace:
                event.speculative = trace_of(part.piece, call.tokenizer)
            yield sse(event)
        else:
            if streaming.usage:
                last = exchange.closing()
                last.usage = usage_of(call.stats(), exchange.n, silent=exchange.silent)
                last.metrics = metrics_of(call.stats(), call.max_draft_tokens)
                yield b"data: " + encode(last) + b"\n\n"
        yield DONE
    finally:
        call.close()


def failure(done: Completion) -> ApiError | None:
    """Why an answer did not come to a proper end; None when it did."""
    if done.finish_reason in ("stop", "length"):
        return None
    status = 408 if done.finish_reason == "timeout" else 500
    return ApiError(status, done.error or "the request failed", code=done.finish_reason)
