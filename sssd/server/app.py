"""The HTTP application: routes, bodies in, replies out. Owns paths and statuses; the endpoints' meaning is elsewhere.

Middleware has to be plain ASGI: Starlette's BaseHTTPMiddleware hides that a client has gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

import sssd
from sssd.errors import SssdError
from sssd.server.chat import ChatExchange, conversation_ids
from sssd.server.completions import CompletionExchange
from sssd.server.description import components, route
from sssd.server.errors import CHAT_FIELDS, FIELDS, ApiError, bad_request, from_ours, refusals
from sssd.server.exchange import Context, Exchange
from sssd.server.gate import key_of
from sssd.server.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from sssd.server.replies import (
    ChatReply,
    CompletionReply,
    DetokenizeReply,
    ModelCard,
    ModelList,
    TokenizeReply,
    VersionReply,
)
from sssd.server.serving import Call, Serving
from sssd.server.settings import Settings
from sssd.server.stream import ClientGone, EventStream, events_of, failure, unless_gone
from sssd.server.usage import metrics_of, usage_of

Body = TypeVar("Body", bound=msgspec.Struct)
T = TypeVar("T")
AT_ONCE = 16 * 1024  # bytes of a body that is dealt with between two events of a stream


def make_app(serving: Serving, settings: Settings) -> FastAPI:
    """The application that answers from `serving`, which the caller closes after it."""
    context = Context(serving.model, settings)
    app = FastAPI(title="sssd", version=sssd.__version__, docs_url=None, redoc_url=None)
    app.state.serving = serving
    app.state.settings = settings
    app.state.names = context.names
    _add_errors(app)
    _add_generation(app, serving, context)
    _add_models(app, context)
    _add_tokens(app, context)
    app.openapi = partial(_description, app)  # type: ignore[method-assign]
    return app


def _description(app: FastAPI) -> dict[str, Any]:
    found = FastAPI.openapi(app)
    bodies = (CompletionRequest, ChatRequest, TokenizeRequest, DetokenizeRequest)
    replies = (CompletionReply, ChatReply, ModelList, ModelCard, TokenizeReply, DetokenizeReply, VersionReply)
    for path in found["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)  # FastAPI's own refusal, which is never sent
    found.setdefault("components", {})["schemas"] = components(*bodies, *replies)
    return found


def _add_errors(app: FastAPI) -> None:
    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return as_json(error.reply(), status=error.status, headers=error.headers())

    async def ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, SssdError)
        return await refused(request, from_ours(error))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        what = f"{request.method} {request.url.path}: {error.detail}"
        return await refused(request, ApiError(error.status_code, what))

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=499)  # nobody reads it; the number is for the log

    async def fault(request: Request, error: Exception) -> Response:
        return await refused(request, ApiError(500, "internal error: see the server's log", code="internal_error"))

    app.add_exception_handler(ApiError, refused)
    app.add_exception_handler(SssdError, ours)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(ClientGone, gone)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(Exception, fault)


def _add_generation(app: FastAPI, serving: Serving, context: Context) -> None:
    limit = context.settings.max_body_bytes

    @app.post("/v1/completions", openapi_extra=route(CompletionReply, CompletionRequest))
    async def completions(request: Request) -> Response:
        known = replace(context, key=key_of(request))
        body = await read_body(request, limit)
        with refusals(FIELDS):
            exchange = await prepared(body, lambda: CompletionExchange(decoded(body, CompletionRequest), known))
            call = await serving.call(exchange.jobs)
        return await _answer(request, exchange, call)

    @app.post("/v1/chat/completions", openapi_extra=route(ChatReply, ChatRequest))
    async def chat_completions(request: Request) -> Response:
        known = replace(context, key=key_of(request))
        body = await read_body(request, limit)
        with refusals(CHAT_FIELDS):
            exchange = await prepared(body, lambda: ChatExchange(decoded(body, ChatRequest), known))
            call = await serving.call(exchange.jobs)
        return await _answer(request, exchange, call)


async def _answer(request: Request, exchange: Exchange, call: Call) -> Response:
    if exchange.streaming is not None:
        return EventStream(events_of(exchange, call))
    try:
        done = await unless_gone(request, call.completions())
    finally:
        call.close()
    failures = [error for one in done if (error := failure(one))]
    if failures:
        raise failures[0]
    reply = exchange.reply(done)
    reply.usage = usage_of(call.stats(), exchange.n, silent=exchange.silent)
    reply.metrics = metrics_of(call.stats(), call.max_draft_tokens)
    return as_json(reply)


def _add_models(app: FastAPI, context: Context) -> None:
    started = int(time.time())
    spec = context.model.spec
    cards = [ModelCard(id=n, created=started, root=spec.name, max_model_len=spec.max_len) for n in context.names]

    @app.get("/v1/models", openapi_extra=route(ModelList))
    async def models() -> Response:
        return as_json(ModelList(data=cards))

    @app.get("/v1/models/{name:path}", openapi_extra=route(ModelCard))
    async def model(name: str) -> Response:
        context.name_for(name)
        return as_json(next(card for card in cards if card.id == name))

    @app.get("/version", openapi_extra=route(VersionReply))
    async def version() -> Response:
        return as_json(VersionReply(version=sssd.__version__))


def _add_tokens(app: FastAPI, context: Context) -> None:
    limit = context.settings.max_body_bytes
    tokenizer, spec = context.model.tokenizer, context.model.spec

    @app.post("/tokenize", openapi_extra=route(TokenizeReply, TokenizeRequest))
    async def tokenize(request: Request) -> Response:
        asked = decoded(await read_body(request, limit), TokenizeRequest)
        context.name_for(asked.model)
        if (asked.prompt is None) == (asked.messages is None):
            raise bad_request("give either prompt or messages", "prompt")
        if asked.messages is not None:
            ids = conversation_ids(asked, asked.messages, tokenizer)
        else:
            ids = tokenizer.encode(asked.prompt or "", special=asked.add_special_tokens)
        names = [tokenizer.token_text(i) for i in ids] if asked.return_token_strs else None
        return as_json(TokenizeReply(count=len(ids), max_model_len=spec.max_len, tokens=ids, token_strs=names))

    @app.post("/detokenize", openapi_extra=route(DetokenizeReply, DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        asked = decoded(await read_body(request, limit), DetokenizeRequest)
        context.name_for(asked.model)
        wrong = [i for i in asked.tokens if i >= spec.vocab_size]
        if wrong:
            raise bad_request(f"tokens holds {wrong[0]}: allowed is 0 to {spec.vocab_size - 1}", "tokens")
        return as_json(DetokenizeReply(prompt=tokenizer.decode(asked.tokens)))


async def read_body(request: Request, limit: int) -> bytearray:
    """The request's body. Raises ApiError for one that is too large, before it is read to its end."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > limit:
            raise ApiError(413, f"the body has more than {limit} bytes: send less", code="body_too_large")
    return data


async def prepared(body: bytearray, work: Callable[[], T]) -> T:
    """The result of `work`, on a thread when there is much to read: streams must not wait for a long prompt."""
    return work() if len(body) <= AT_ONCE else await asyncio.to_thread(work)


def decoded(data: bytearray, kind: type[Body]) -> Body:
    """The body's JSON. Raises ApiError naming the field whose value does not fit."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as e:
        message, _, path = str(e).partition(" - at `$")
        param = ".".join(filter(None, (path.strip("`").lstrip("."), _named(message)))) or None
        raise bad_request(f"{param}: {message}" if param else message, param, "invalid_type") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise bad_request(f"the body is no JSON: {e}", code="invalid_json") from None


def _named(message: str) -> str | None:
    """The field of "Object missing required field `x`", or of "unknown field `x`"."""
    return message.split("`")[1] if "field `" in message else None


def as_json(value: msgspec.Struct, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON response."""
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")
