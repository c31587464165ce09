"""Answers of a certain form, and tool calls, over HTTP with OpenAI's own client."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.helpers.serving import Lucky, scripted_model, served, speaker

pytest.importorskip("llguidance")  # brought by the extras structured and dev

TOOLS_TEMPLATE = (
    "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}<tool_call>{% endif %}"
    "{% for m in messages %}[{{ m.role }}{% if m.tool_call_id %} {{ m.tool_call_id }}{% endif %}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments.x | tojson }}{% endfor %}{% endfor %}{{ mood }}~"
)
CALL = 'Sure. <tool_call>\n{"name": "add", "arguments": {"x": "é", "y": [1, {}]}}\n</tool_call>'
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}
ADD = {"type": "function", "function": {"name": "add", "description": "a < b", "parameters": SCHEMA}}
NEG = {"type": "function", "function": {"name": "neg"}}
ASK = [{"role": "user", "content": "?"}]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    script = speaker(CALL, end=len(CALL.encode()), marks=b"~")
    model = scripted_model(tmp_path_factory.mktemp("toy"), script, Lucky(script), template=TOOLS_TEMPLATE, max_len=1024)
    with served(model) as base:
        yield base


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="EMPTY", max_retries=0) as made:
        yield made


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    asked: dict[str, Any] = {"model": "scripted", "messages": ASK, "temperature": 0, "max_tokens": 300}
    return client.chat.completions.create(**asked | fields)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("wanted", [{"response_format": None}, {"extra_body": "guided_json"}, {"extra_body": "json"}])
def test_an_answer_is_valid_under_its_schema(client: openai.OpenAI, wanted: dict, temperature: int) -> None:
    named = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}
    if "response_format" in wanted:
        fields: dict[str, Any] = {"response_format": named}
    elif wanted["extra_body"] == "json":
        fields = {"extra_body": {"structured_outputs": {"json": SCHEMA}}}
    else:
        fields = {"extra_body": {"guided_json": json.dumps(SCHEMA)}}
    done = ask(client, temperature=temperature, seed=3, **fields)
    assert done.choices[0].finish_reason == "stop"
    assert set(json.loads(done.choices[0].message.content)) == {"name", "ok"}
    chunks = ask(client, temperature=temperature, seed=3, stream=True, **fields)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == done.choices[0].message.content


def test_every_other_form_is_kept_to(client: openai.OpenAI) -> None:
    def text(**fields: Any) -> str:
        return str(ask(client, **fields).choices[0].message.content)

    assert text(extra_body={"guided_choice": ["red", "Sand"]}) in ("red", "Sand")
    assert re.fullmatch(r"[0-9]{4}", text(extra_body={"guided_regex": "[0-9]{4}"}))
    assert re.fullmatch(r"\(*x\)*", text(extra_body={"guided_grammar": 'start: "(" start ")" | "x"'}))
    assert text(extra_body={"structured_outputs": {"choice": ["x"]}}) == "x"
    assert text(response_format={"type": "json_object"}, max_tokens=5).startswith("{")
    assert text(response_format={"type": "text"}) == CALL
    whole = client.completions.create(model="scripted", prompt="?~", extra_body={"guided_choice": ["x"]})
    assert whole.choices[0].text == "x"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": {"type": "json_schema"}}, "needs json_schema.schema"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}}, "Invalid type"),
        ({"guided_json": "{"}, "guided_json: the JSON schema is no JSON"),
        ({"guided_json": {"type": "integer", "minimum": 2, "maximum": 1}}, "Unsatisfiable"),
        ({"guided_json": {"enum": [f"{i:09}" for i in range(9000)]}}, "characters"),
        ({"guided_regex": "(" * 1000}, "invalid regex"),
        ({"guided_choice": []}, "allowed is a list"),
        ({"guided_grammar": "nonsense"}, "lark"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "cannot go together"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"structured_outputs": {"regexp": "a"}}, "regexp"),
        ({"tool_choice": "required"}, "needs tools"),
        ({"tool_choice": "often", "tools": [ADD]}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "no"}}, "tools": [ADD]}, "not among tools"),
        ({"tool_choice": "required", "tools": [ADD], "guided_regex": "a"}, "certain form"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}}],
          "tool_choice": "required"}, "Invalid type"),
        ({"tools": [{"type": "function"}]}, "function"),
        ({"chat_template_kwargs": {"messages": []}}, "messages"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}]},
         "no JSON object"),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_a_400_that_says_why_and_the_server_stays_up(
    url: str, fields: dict, message: str
) -> None:
    body = {"messages": ASK, "max_tokens": 5} | fields
    refused = httpx.post(f"{url}/v1/chat/completions", json=body)
    assert refused.status_code == 400, refused.text
    assert re.search(message, refused.json()["error"]["message"])
    assert httpx.post(f"{url}/v1/chat/completions", json={"messages": ASK, "max_tokens": 5}).status_code == 200


def merged(chunks: Any) -> tuple[str, list[tuple[str, str]], str, int]:
    content, calls, finish, n = "", [], "", 0
    for chunk in chunks:
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        finish = choice.finish_reason or finish
        for call in choice.delta.tool_calls or []:
            if call.id is not None:
                assert call.index == len(calls)
                assert call.type == "function"
                calls.append([call.function.name, ""])
            calls[call.index][1] += call.function.arguments
            n += 1
    return content, [tuple(c) for c in calls], finish, n


def test_a_call_in_the_answer_is_read_whole_and_streamed(client: openai.OpenAI) -> None:
    done = ask(client, tools=[ADD, NEG]).choices[0]
    (call,) = done.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("add", '{"x": "é", "y": [1, {}]}')
    assert len(call.id) == 9
    assert (done.finish_reason, done.message.content) == ("tool_calls", "Sure. ")
    content, calls, finish, n = merged(ask(client, tools=[ADD, NEG], stream=True))
    assert (content, calls, finish) == ("Sure. ", [("add", '{"x": "é", "y": [1, {}]}')], "tool_calls")
    assert n > 2, "arguments come as they are written"


def test_without_tools_or_with_choice_none_the_answer_is_text(client: openai.OpenAI) -> None:
    for fields in ({}, {"tools": [ADD], "tool_choice": "none"}):
        done = ask(client, **fields).choices[0]
        assert (done.message.content, done.finish_reason, done.message.tool_calls) == (CALL, "stop", None)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_call_keeps_to_the_tools_schema(client: openai.OpenAI, choice: Any, stream: bool) -> None:
    asked = {"tools": [ADD], "tool_choice": choice, "parallel_tool_calls": False, "stream": stream}
    if stream:
        content, calls, finish, _ = merged(ask(client, **asked))
    else:
        done = ask(client, **asked).choices[0]
        content, finish = done.message.content or "", done.finish_reason
        calls = [(c.function.name, c.function.arguments) for c in done.message.tool_calls]
    assert (content, finish) == ("", "tool_calls")
    ((name, arguments),) = calls
    assert name == "add"
    assert set(json.loads(arguments)) == {"name", "ok"}


def test_tools_calls_and_their_results_reach_the_template(url: str) -> None:
    called = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"x": "<é>"}'}}
    messages = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c1", "content": "7"},
    ]
    body = {"messages": messages, "tools": [ADD], "max_tokens": 1, "chat_template_kwargs": {"mood": "calm"}}
    with httpx.Client() as http:
        done = http.post(f"{url}/v1/chat/completions", json=body).json()
    shown = json.dumps(ADD, ensure_ascii=False)
    prompt = f'{shown}<tool_call>[user]?[assistant]"<é>"[tool c1]7calm~'
    assert done["usage"]["prompt_tokens"] == len(prompt.encode())
