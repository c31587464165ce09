"""What an output must look like, as a value: one kind and its text. Owns the checks that need no tokenizer.

Knows no vocabulary and no masks: sssd/grammar.py turns a constraint and a vocabulary into those.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sssd.errors import RequestError

Kind = Literal["json_schema", "regex", "choice", "lark", "framed_json"]
JsonSchema = Mapping[str, Any]

# Longest text of a kind, in characters. A regex costs time that grows with its square.
MAX_CHARS: Mapping[Kind, int] = {
    "json_schema": 65_536,
    "framed_json": 65_536,
    "choice": 65_536,
    "lark": 32_768,
    "regex": 8_192,
}
MAX_DEPTH = 100  # of a JSON schema, references followed
MAX_MARKS = 1_000  # rules and brackets of a lark grammar: they may nest in one another as deep


@dataclass(frozen=True, slots=True)
class Constraint:
    """The output is a JSON value of a schema, a match of a regex, one of some texts, or a sentence of a lark grammar.

    Make one with the functions named like the kinds; equal constraints are compiled once. Raises RequestError when
    its text is too long or nests too deep.
    """

    kind: Kind
    text: str  # the schema, the frame or the list of choices as JSON, the regex, the grammar

    def __post_init__(self) -> None:
        most = MAX_CHARS[self.kind]
        if len(self.text) > most:
            raise RequestError(f"a {self.kind} of {len(self.text)} characters: allowed are {most}")
        if self.kind == "lark":
            marks = sum(map(self.text.count, ":(["))
            if marks > MAX_MARKS:
                raise RequestError(f"a lark grammar with {marks} rules and brackets: allowed are {MAX_MARKS}")

    @staticmethod
    def json_schema(schema: JsonSchema | str) -> Constraint:
        """A JSON value that is valid under a JSON Schema (draft 2020-12), given as a dict or as JSON text.

        Written as Python's json.dumps writes it: a space behind ":" and ",", no others.
        """
        try:
            parsed = json.loads(schema) if isinstance(schema, str) else schema
            text = json.dumps(parsed, ensure_ascii=False)
        except (ValueError, TypeError, RecursionError) as e:
            raise RequestError(f"the JSON schema is no JSON: {e}") from None
        if not isinstance(parsed, Mapping):
            raise RequestError(f"the JSON schema is a {type(parsed).__name__}: allowed is an object")
        if not isinstance(parsed.get("x-guidance", {}), Mapping):
            raise RequestError("the JSON schema's x-guidance is no object: leave it out")
        constraint = Constraint("json_schema", text)
        _check_schema(parsed)
        return constraint

    @staticmethod
    def json_object() -> Constraint:
        """Any JSON object."""
        return Constraint.json_schema({"type": "object"})

    @staticmethod
    def regex(pattern: str) -> Constraint:
        """A text that the pattern matches from end to end, in the syntax of Rust's regex crate without look-around."""
        return Constraint("regex", pattern)

    @staticmethod
    def choice(texts: Sequence[str]) -> Constraint:
        """One of the texts, word for word."""
        if isinstance(texts, str) or not texts or not all(isinstance(t, str) and t for t in texts):
            raise RequestError(f"choice is {texts!r}: allowed is a list of texts that are not empty")
        return Constraint("choice", json.dumps(list(texts), ensure_ascii=False))

    @staticmethod
    def framed_json(opening: str, schema: JsonSchema, closing: str, *, between: str | None = None) -> Constraint:
        """A JSON value of a schema between two texts, which may be empty or special tokens' names.

        `between` allows further ones, each in a frame of its own, with this text before it.
        """
        Constraint.json_schema(schema)
        return Constraint("framed_json", json.dumps([opening, schema, closing, between], ensure_ascii=False))

    @staticmethod
    def lark(grammar: str) -> Constraint:
        """A sentence of a context-free grammar in llguidance's variant of lark syntax; its first rule is `start`."""
        return Constraint("lark", grammar)


def _check_schema(schema: JsonSchema) -> None:
    """Refuse what would nest too deep: the compiler's recursion must end before the stack does."""
    depths: dict[int, int] = {}  # of what references point at, by identity; 0 while it is being measured

    def followed(node: Mapping[str, Any], left: int) -> Iterator[int]:
        """Depths below a node, of its values and of what it refers to."""
        pattern, target = node.get("pattern"), _target(schema, node)
        if isinstance(pattern, str):
            Constraint.regex(pattern)
        yield from (depth(v, left) for v in node.values() if isinstance(v, Mapping | list))
        if target is not None:
            if id(target) not in depths:
                depths[id(target)] = 0
                depths[id(target)] = depth(target, left)
            yield depths[id(target)]

    def depth(node: Any, left: int) -> int:
        below: Iterable[int] = ()
        if left > 0:
            inner = (depth(v, left - 1) for v in node if isinstance(v, Mapping | list))
            below = followed(node, left - 1) if isinstance(node, Mapping) else inner
        deepest = 1 + max(below, default=0)
        if left <= 0 or deepest > left:
            raise RequestError(f"the JSON schema nests deeper than {MAX_DEPTH} levels, references followed")
        return deepest

    depth(schema, MAX_DEPTH)


def _target(schema: JsonSchema, node: Mapping[str, Any]) -> Any:
    """What a node refers to, None without a reference; a reference that leads out of the schema is refused."""
    reference = node.get("$ref")
    if isinstance(node.get("$id"), str) and node is not schema:
        raise RequestError("the JSON schema has an $id inside: leave it out, and refer with #/...")
    if not isinstance(reference, str):
        return None
    target: Any = schema
    for part in reference.split("/")[1:]:
        key: str | int = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list):
            key = int(key) if str(key).isdecimal() and int(key) < len(target) else -1
        elif not isinstance(target, Mapping) or key not in target:
            key = -1
        target = None if key == -1 else target[key]
    if reference.split("/")[0] != "#" or target is None:
        raise RequestError(f"the JSON schema refers to {reference!r}: allowed is #/... , a place within it")
    return target if isinstance(target, Mapping | list) else None
