"""Errors as OpenAI clients read them. Owns the JSON, the status and the headers of everything that is refused.

Knows no routes. `{"error": {"message", "type", "param", "code"}}`, never anything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec

from sssd.errors import EngineError, QueueFull, RequestError, SssdError

FIELDS = {  # our options' names -> the API's
    "stop_ids": "stop_token_ids",
    "include_stop": "include_stop_str_in_output",
    "skip_special": "skip_special_tokens",
    "max_draft_tokens": "speculative.max_draft_tokens",
    "namespaces": "speculative.namespace",
}
CHAT_FIELDS = FIELDS | {"prompt": "messages", "logprobs": "top_logprobs"}


class ErrorBody(msgspec.Struct):
    """What went wrong, in one line, and which field is to blame."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorReply(msgspec.Struct):
    """The whole body of a refusal, and of an error in a stream."""

    error: ErrorBody


class ApiError(Exception):
    """A refusal on its way to the client."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after = retry_after  # seconds; None = the same call will fail again

    def reply(self) -> ErrorReply:
        """As JSON."""
        return ErrorReply(ErrorBody(str(self), _kind(self.status), self.param, self.code))

    def headers(self) -> dict[str, str]:
        """Clients of OpenAI's kind retry 408, 409, 429 and 5xx by themselves unless told otherwise."""
        if self.retry_after is not None:
            return {"retry-after": str(self.retry_after)}
        return {"x-should-retry": "false"} if self.status in (408, 409, 429) or self.status >= 500 else {}


def _kind(status: int) -> str:
    kinds = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        408: "timeout_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "unavailable_error",
    }
    return kinds.get(status, "invalid_request_error" if status < 500 else "server_error")


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400 that names the field."""
    return ApiError(400, message, param=param, code=code)


def from_ours(error: SssdError, fields: Mapping[str, str] = FIELDS) -> ApiError:
    """What the rest of the package raises, as a refusal; `fields` are the endpoint's names of our options."""
    if isinstance(error, QueueFull):
        return ApiError(429, str(error), code="queue_full", retry_after=1)
    if isinstance(error, RequestError):
        name = error.param or ""
        message = str(error).replace(name, fields[name], 1) if name in fields else str(error)
        return bad_request(message, fields.get(name, error.param), error.code)
    status = 503 if isinstance(error, EngineError) else 500
    return ApiError(status, str(error), code="engine_error")


@contextmanager
def refusals(fields: Mapping[str, str]) -> Iterator[None]:
    """Errors of ours that leave the block do so as ApiErrors that name the endpoint's fields."""
    try:
        yield
    except SssdError as e:
        raise from_ours(e, fields) from e
