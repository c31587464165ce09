"""How models write tool calls: the known formats, which one a chat template means, and the grammar that forces one.

Knows templates and schemas as text; reading calls out of an answer is tool_calls.py's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sssd.constraint import Constraint


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A call is a JSON object with a name and arguments, alone or in a list, with or without marks around it."""

    name: str
    sign: str  # what a template that means this format contains
    opening: str  # before a call or a list; where it is a special token, answers show nothing of it
    closing: str  # after it
    arguments: str  # the key beside "name"
    listed: bool  # calls stand in a JSON list; otherwise each has marks of its own
    bare: bool  # an answer may begin with the JSON itself, without the opening mark


# in the order in which a template is searched for their signs
FORMATS = (
    ToolFormat("hermes", "<tool_call>", "<tool_call>\n", "\n</tool_call>", "arguments", listed=False, bare=True),
    ToolFormat("mistral", "[TOOL_CALLS]", "[TOOL_CALLS]", "", "arguments", listed=True, bare=True),
    ToolFormat("granite", "<|tool_call|>", "<|tool_call|>", "", "arguments", listed=True, bare=True),
    ToolFormat("llama3", '"parameters": ', "", "", "parameters", listed=False, bare=True),
)


def format_of(template: str) -> ToolFormat | None:
    """The format that a chat template teaches; None for one that knows no tools."""
    if "tools" not in template:
        return None
    return next((f for f in FORMATS if f.sign in template), None)


def forced_calls(form: ToolFormat, tools: Sequence[tuple[str, Mapping[str, Any]]], *, several: bool) -> Constraint:
    """An answer that is one call of these tools, or `several`: pairs of a name and its parameters' JSON Schema.

    Raises RequestError as Constraint does.
    """
    calls = [_call(form, name, schema, f"#/anyOf/{i}") for i, (name, schema) in enumerate(tools)]
    several = several and (form.listed or bool(form.opening))
    if not form.listed:
        return Constraint.framed_json(form.opening, {"anyOf": calls}, form.closing, between="\n" if several else None)
    calls = [_call(form, name, schema, f"#/items/anyOf/{i}") for i, (name, schema) in enumerate(tools)]
    items = {"type": "array", "items": {"anyOf": calls}, "minItems": 1} | ({} if several else {"maxItems": 1})
    return Constraint.framed_json(form.opening, items, form.closing)


def _call(form: ToolFormat, name: str, schema: Mapping[str, Any], place: str) -> dict[str, Any]:
    parameters = _moved(schema or {"type": "object"}, f"{place}/properties/{form.arguments}")
    return {
        "type": "object",
        "properties": {"name": {"const": name}, form.arguments: parameters},
        "required": ["name", form.arguments],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """A schema whose references to its own places hold when it stands at `place` of another one."""
    if isinstance(schema, Mapping):
        moved = {key: _moved(value, place) for key, value in schema.items()}
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            moved["$ref"] = place + reference[1:]
        return moved
    return [_moved(value, place) for value in schema] if isinstance(schema, list) else schema


def arguments_text(value: object) -> str:
    """Arguments as the API shows them: JSON text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
