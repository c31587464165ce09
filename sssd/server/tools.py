"""Tools in a chat request: which may be called, what forces a call, and calls as the API writes them.

Knows the API's JSON; formats and reading are tool_formats.py's and tool_calls.py's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from sssd.constraint import Constraint
from sssd.errors import RequestError
from sssd.server.errors import bad_request
from sssd.server.protocol import AssistantToolCall, ChatRequest, NamedTool, Tool
from sssd.server.replies import CalledFunction, ToolCall
from sssd.server.structured import constraint_of
from sssd.server.tool_calls import CallPiece, ToolCallReader
from sssd.server.tool_formats import FORMATS, ToolFormat, forced_calls, format_of
from sssd.text import ToolCall as TurnCall


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of one request."""

    form: ToolFormat
    names: tuple[str, ...]
    for_prompt: tuple[dict[str, Any], ...]  # as chat templates want them
    forced: Constraint | None  # an answer that is a call; None = the model decides
    several: bool  # more than one call may be made

    def reader(self) -> ToolCallReader:
        """For one answer."""
        return ToolCallReader(self.form, self.names)

    def shown(self, pieces: Sequence[CallPiece]) -> list[CallPiece]:
        """Those that the client asked for: the first call's where it wants one at most."""
        return [p for p in pieces if self.several or p.index == 0]


def tool_use(asked: ChatRequest, template: str) -> ToolUse | None:
    """What the request's tools come to; None where none may be called. Raises ApiError naming the field."""
    tools = asked.tools or []
    wanted = asked.tool_choice
    if not tools and wanted not in (None, "none", "auto"):
        raise bad_request("tool_choice needs tools", "tool_choice")
    if not tools or wanted == "none":
        return None
    form = format_of(template)
    if form is None:
        known = ", ".join(f.name for f in FORMATS)
        raise bad_request(f"the model's chat template knows no tools in a format of {known}", "tools")
    several = asked.parallel_tool_calls is not False
    return ToolUse(
        form,
        tuple(t.function.name for t in tools),
        tuple(msgspec.to_builtins(t) | {"type": "function"} for t in tools),
        _forced(asked, tools, form, several=several),
        several,
    )


def _forced(asked: ChatRequest, tools: Sequence[Tool], form: ToolFormat, *, several: bool) -> Constraint | None:
    wanted = asked.tool_choice
    if wanted in (None, "auto"):
        return None
    if constraint_of(asked) is not None:
        raise bad_request(
            "tool_choice asks for a call, and another field for an answer of a certain form", "tool_choice"
        )
    if isinstance(wanted, NamedTool):
        tools = [t for t in tools if t.function.name == wanted.function.name]
        several = False
        if not tools:
            raise bad_request(f"tool_choice names {wanted.function.name!r}, which is not among tools", "tool_choice")
    try:
        return forced_calls(form, [(t.function.name, t.function.parameters or {}) for t in tools], several=several)
    except RequestError as e:
        raise bad_request(f"tools: {e}", "tools") from None


def as_deltas(pieces: Sequence[CallPiece]) -> list[ToolCall]:
    """Pieces of calls as a stream shows them."""
    return [
        ToolCall(
            index=p.index,
            id=msgspec.UNSET if p.id is None else p.id,
            type=msgspec.UNSET if p.id is None else "function",
            function=CalledFunction(name=msgspec.UNSET if p.name is None else p.name, arguments=p.arguments),
        )
        for p in pieces
    ]


def as_calls(pieces: Sequence[CallPiece]) -> list[ToolCall]:
    """Whole calls, from all of an answer's pieces."""
    calls: list[ToolCall] = []
    for piece in pieces:
        if piece.id is not None and piece.name is not None:
            named = CalledFunction(name=piece.name, arguments="")
            calls.append(ToolCall(id=piece.id, type="function", function=named))
        calls[piece.index].function.arguments += piece.arguments
    return calls


def of_turn(calls: Sequence[AssistantToolCall], field: str) -> tuple[TurnCall, ...]:
    """Calls of an earlier turn. Raises ApiError for arguments that are no JSON object."""
    return tuple(TurnCall(c.id, c.function.name, _arguments(c, f"{field}[{i}]")) for i, c in enumerate(calls))


def _arguments(call: AssistantToolCall, field: str) -> dict[str, Any]:
    given = call.function.arguments
    try:
        value = json.loads(given or "{}") if isinstance(given, str) else given
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        where = f"{field}.function.arguments"
        raise bad_request(f"{where} is no JSON object", where)
    return value
