"""The OpenAPI description: bodies and replies of every route, from the structs themselves. Knows no handler."""

from __future__ import annotations

from typing import Any

import msgspec

from sssd.server.errors import ErrorReply
from sssd.server.protocol import Common

_REF = "#/components/schemas/{name}"


def route(reply: type[msgspec.Struct], body: type[msgspec.Struct] | None = None) -> dict[str, Any]:
    """What FastAPI is to say of a route beside its path (its `openapi_extra`)."""
    answer = _content(reply, "The answer.")
    if body is not None and issubclass(body, Common):
        answer["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    described: dict[str, Any] = {"responses": {"200": answer, "4XX": _content(ErrorReply, "What is wrong, by name.")}}
    if body is not None:
        described["requestBody"] = {"required": True, **_content(body)}
    return described


def components(*structs: type[msgspec.Struct]) -> dict[str, Any]:
    """The schemas that `route` refers to."""
    _, schemas = msgspec.json.schema_components([*structs, ErrorReply], ref_template=_REF)
    return schemas


def _content(struct: type[msgspec.Struct], text: str | None = None) -> dict[str, Any]:
    content: dict[str, Any] = {"content": {"application/json": {"schema": {"$ref": _REF.format(name=struct.__name__)}}}}
    return content if text is None else {"description": text, **content}
