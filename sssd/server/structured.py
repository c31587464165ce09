"""From the fields that ask for an answer of a certain form to one constraint. Knows no tokens and no tools."""

from __future__ import annotations

from sssd.constraint import Constraint
from sssd.errors import RequestError
from sssd.server.errors import bad_request
from sssd.server.protocol import Common, ResponseFormat, StructuredOutputs


def constraint_of(asked: Common) -> Constraint | None:
    """What the answer must look like. Raises ApiError naming the field, for two forms at once too."""
    structured = asked.structured_outputs or StructuredOutputs()
    given = {
        "response_format": asked.response_format,
        "guided_json": asked.guided_json,
        "guided_regex": asked.guided_regex,
        "guided_choice": asked.guided_choice,
        "guided_grammar": asked.guided_grammar,
        "structured_outputs.json": structured.json,
        "structured_outputs.json_object": structured.json_object or None,
        "structured_outputs.regex": structured.regex,
        "structured_outputs.choice": structured.choice,
        "structured_outputs.grammar": structured.grammar,
    }
    if asked.response_format is not None and asked.response_format.type == "text":
        del given["response_format"]
    asked_for = {field: value for field, value in given.items() if value is not None}
    if not asked_for:
        return None
    if len(asked_for) > 1:
        raise bad_request(f"{' and '.join(asked_for)} cannot go together: give one of them", list(asked_for)[1])
    ((field, value),) = asked_for.items()
    try:
        return _constraint(field, value)
    except RequestError as e:
        raise bad_request(f"{field}: {e}", field) from None


def _constraint(field: str, value: object) -> Constraint:
    kind = field.rpartition(".")[2].removeprefix("guided_")
    if isinstance(value, ResponseFormat):
        return _of_format(value)
    if isinstance(value, bool):
        return Constraint.json_object()
    if isinstance(value, list):
        return Constraint.choice(value)
    if kind == "json" and isinstance(value, dict | str):
        return Constraint.json_schema(value)
    assert isinstance(value, str)
    return Constraint.regex(value) if kind == "regex" else Constraint.lark(value)


def _of_format(given: ResponseFormat) -> Constraint:
    if given.type == "json_object":
        return Constraint.json_object()
    if given.json_schema is None or given.json_schema.schema is None:
        raise RequestError("type json_schema needs json_schema.schema")
    return Constraint.json_schema(given.json_schema.schema)
