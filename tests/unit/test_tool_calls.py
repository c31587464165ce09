"""Tool calls: read from an answer's text cut anywhere, and forced by a grammar."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np
import pytest

from sssd.errors import RequestError
from sssd.server.tool_calls import ToolCallReader
from sssd.server.tool_formats import FORMATS, ToolFormat, forced_calls, format_of
from tests.helpers.grammars import EOS, grammars, ids, text

FORMS = {f.name: f for f in FORMATS}
WEATHER = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
TREE = {
    "type": "object",
    "properties": {"top": {"$ref": "#/$defs/node"}},
    "required": ["top"],
    "additionalProperties": False,
    "$defs": {"node": {"enum": [1, 2]}},
}
TOOLS = [("weather", WEATHER | {"additionalProperties": False}), ("grow", TREE)]


class Found(NamedTuple):
    content: str
    calls: list[tuple[str, str]]  # name, arguments


def read(form: ToolFormat, pieces: list[str]) -> Found:
    reader = ToolCallReader(form, [name for name, _ in TOOLS])
    content = ""
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    identities = set()
    for got in [*map(reader.push, pieces), reader.finish()]:
        content += got.content
        for piece in got.calls:
            assert (piece.name is None) == (piece.id is None) == (piece.index in names), "named once, at its beginning"
            if piece.name is not None:
                names[piece.index] = piece.name
                identities.add(piece.id)
            arguments[piece.index] = arguments.get(piece.index, "") + piece.arguments
    assert list(names) == list(range(reader.n_calls))
    assert len(identities) == reader.n_calls
    return Found(content, [(names[i], arguments[i]) for i in names])


A = '{"city": "Ro}me \\" {"}'
B = '{"top": {"a": [1, {}]}}'
CASES = [
    ("hermes", f'<tool_call>\n{{"name": "weather", "arguments": {A}}}\n</tool_call>', "", [("weather", A)]),
    (
        "hermes",
        f'Let me see.\n<tool_call>\n{{"name": "weather", "arguments": {A}}}\n</tool_call>\n'
        f'<tool_call>{{"name":"grow","arguments":{B}}}</tool_call>\n',
        "Let me see.\n",
        [("weather", A), ("grow", B)],
    ),
    (
        "hermes",
        f'<tool_call>{{"arguments": {B}, "name": "grow"}}</tool_call> done',
        "done",
        [("grow", '{"top": {"a": [1, {}]}}')],
    ),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Ro', "", [("weather", '{"city": "Ro')]),
    ("hermes", f'<tool_call>{{"name": "weather", "arguments": {A}, "id": "}}"}}</tool_call>', "", [("weather", A)]),
    ("hermes", "a < b <tool> <tool_cal", "a < b <tool> <tool_cal", []),
    ("hermes", "<tool_call>nothing</tool_call>", "<tool_call>nothing</tool_call>", []),
    ("hermes", '<tool_call>{"x": 1}</tool_call>', '<tool_call>{"x": 1}</tool_call>', []),
    ("hermes", "<tool_call>\n", "<tool_call>\n", []),
    ("hermes", '{"name": "weather", "arguments": {}}\n', "", [("weather", "{}")]),
    ("hermes", '{"name": "other", "arguments": {}}', '{"name": "other", "arguments": {}}', []),
    ("hermes", "  plain é 👍 text ", "  plain é 👍 text ", []),
    ("hermes", "", "", []),
    (
        "hermes",
        '<tool_call>{"name": "weather", "arguments": "{\\"a\\": 1}"}</tool_call>',
        "",
        [("weather", '{"a": 1}')],
    ),
    ("llama3", f'{{"name": "weather", "parameters": {A}}}', "", [("weather", A)]),
    (
        "llama3",
        f'\n{{"name": "weather", "parameters": {A}}}; {{"name": "grow", "parameters": {B}}}',
        "",
        [("weather", A), ("grow", B)],
    ),
    ("llama3", '{"name": "Bob", "parameters": {}}', '{"name": "Bob", "parameters": {}}', []),
    ("llama3", '{"city": "Rome", "name": 3}', '{"city": "Rome", "name": 3}', []),
    ("llama3", "{not json} at all", "{not json} at all", []),
    (
        "llama3",
        f'I say {{"name": "weather", "parameters": {A}}}',
        f'I say {{"name": "weather", "parameters": {A}}}',
        [],
    ),
    (
        "mistral",
        f'[TOOL_CALLS] [{{"name": "weather", "arguments": {A}}}, {{"name": "grow", "arguments": {B}}}]',
        "",
        [("weather", A), ("grow", B)],
    ),
    ("mistral", f' [{{"name": "weather", "arguments": {A}}}]', "", [("weather", A)]),
    ("mistral", "[1, 2, 3] is a list", "[1, 2, 3] is a list", []),
    ("mistral", "[", "[", []),
    ("granite", f'<|tool_call|>[{{"name": "weather", "arguments": {A}}}] so', "so", [("weather", A)]),
    ("granite", f'[{{"name": "weather", "arguments": {A}}}]', "", [("weather", A)]),
]


@pytest.mark.parametrize(("form", "answer", "content", "calls"), CASES)
def test_calls_and_content_are_the_same_however_the_text_is_cut(
    form: str, answer: str, content: str, calls: list
) -> None:
    wanted = Found(content, calls)
    assert read(FORMS[form], [answer]) == wanted
    assert read(FORMS[form], list(answer)) == wanted
    for i in range(len(answer)):
        assert read(FORMS[form], [answer[:i], answer[i:]]) == wanted
    rng = np.random.default_rng(0)
    for _ in range(50):
        cuts = sorted(rng.integers(0, len(answer) + 1, 4).tolist())
        pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
        assert read(FORMS[form], pieces) == wanted


def test_plain_text_and_arguments_stream_as_they_come() -> None:
    reader = ToolCallReader(FORMS["hermes"], ["weather"])
    assert reader.push("Hello <").content == "Hello "
    assert reader.push("b>").content == "<b>"
    assert reader.push('<tool_call>{"name": "weather", "arguments": ').calls == ()
    (begun,) = reader.push('{"ci').calls
    assert (begun.index, begun.name, begun.arguments) == (0, "weather", '{"ci')
    (more,) = reader.push('ty": ').calls
    assert (more.id, more.name, more.arguments) == (None, None, 'ty": ')


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{% if tools %}<tool_call></tool_call>{% endif %}", "hermes"),
        ("{% if tools %}[AVAILABLE_TOOLS][TOOL_CALLS]{% endif %}", "mistral"),
        ('{% if tools %}{"name": "x", "parameters": {}}<|python_tag|>{% endif %}', "llama3"),
        ("{% if tools %}respond with <|tool_call|>{% endif %}", "granite"),
        ("{{ messages }}<tool_call>", None),
        ("{% if tools %}{% endif %}", None),
    ],
)
def test_the_format_is_the_templates(template: str, name: str | None) -> None:
    form = format_of(template)
    assert (form.name if form else None) == name


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("form", FORMATS, ids=lambda f: f.name)
def test_a_forced_answer_is_calls_that_the_reader_finds(form: ToolFormat, several: bool) -> None:
    pytest.importorskip("llguidance")
    constraint = forced_calls(form, TOOLS, several=several)
    rng = np.random.default_rng(1)
    most = 0
    for _ in range(12):
        state, path = grammars().start(constraint), []
        while not path or path[-1] not in EOS:
            allowed = np.flatnonzero(state.allowed(path))
            ends = [t for t in allowed.tolist() if t in EOS]
            path.append(ends[0] if ends and len(path) > 80 else int(rng.choice(allowed)))
        answer = text(path)
        found = read(form, [answer.replace(form.opening, "") if form.listed else answer])
        assert found.content == ""
        assert len(found.calls) == 1 or (several and len(found.calls) > 1)
        most = max(most, len(found.calls))
        for name, arguments in found.calls:
            assert (name, set(json.loads(arguments))) in [("weather", {"city"}), ("grow", {"top"})]
    assert (most > 1) == (several and form.name != "llama3")


def test_tools_with_a_wrong_schema_are_refused() -> None:
    pytest.importorskip("llguidance")
    with pytest.raises(RequestError, match="strng"):
        grammars().start(forced_calls(FORMS["hermes"], [("f", {"type": "strng"})], several=False))
    assert ids("<tool_call>") == [2], "one token, which the grammar's text finds"
