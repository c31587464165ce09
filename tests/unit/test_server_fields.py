"""Every field of the API: honoured, or refused by name. Nothing is ignored in silence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from sssd.config import SamplingParams
from sssd.drafting.retrieval import Retrieval
from sssd.llm import LLM
from tests.helpers.scripts import GarbageTrees, random_script
from tests.helpers.serving import VOCAB, python_api, scripted_model, served
from tests.helpers.toy import EOS

SCRIPT = random_script(vocab=VOCAB)
PROMPT = list(b"abcabc")


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    model = scripted_model(tmp_path_factory.mktemp("toy"), SCRIPT, GarbageTrees(0, VOCAB))
    with served(model) as base, httpx.Client(base_url=base, timeout=20) as made:
        yield made


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with python_api(tmp_path_factory.mktemp("toy"), SCRIPT) as plain:
        yield plain


def post(http: httpx.Client, body: dict[str, Any], path: str = "/v1/completions") -> httpx.Response:
    first = {"prompt": PROMPT} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "hi"}]}
    return http.post(path, json=first | {"max_tokens": 8, "temperature": 0, "return_token_ids": True} | body)


def token_ids(http: httpx.Client, body: dict[str, Any]) -> list[int]:
    done = post(http, body)
    assert done.status_code == 200, done.text
    return done.json()["choices"][0]["token_ids"]


HONOURED = [
    ({"temperature": 0.9, "seed": 3}, {"temperature": 0.9, "seed": 3}),
    ({"temperature": 0.9, "seed": -3}, {"temperature": 0.9, "seed": 2**64 - 3}),
    ({"temperature": 2, "seed": 3, "top_p": 0.4}, {"temperature": 2.0, "seed": 3, "top_p": 0.4}),
    ({"temperature": 2, "seed": 3, "top_k": 3}, {"temperature": 2.0, "seed": 3, "top_k": 3}),
    ({"temperature": 2, "seed": 3, "top_k": -1}, {"temperature": 2.0, "seed": 3}),
    ({"temperature": 2, "seed": 3, "min_p": 0.3}, {"temperature": 2.0, "seed": 3, "min_p": 0.3}),
    ({"repetition_penalty": 0.3}, {"repetition_penalty": 0.3}),
    ({"presence_penalty": -2, "frequency_penalty": -1.5}, {"presence_penalty": -2.0, "frequency_penalty": -1.5}),
    ({"logit_bias": {"65": 100, "66": 99.5}}, {"logit_bias": ((65, 100.0), (66, 99.5))}),
    ({"logit_bias": {"256": 100}, "min_tokens": 5}, {"logit_bias": ((256, 100.0),), "min_tokens": 5}),
    ({"logit_bias": {"256": 100}, "ignore_eos": True}, {"logit_bias": ((256, 100.0),), "ignore_eos": True}),
    ({"logit_bias": {"65": 100}, "stop_token_ids": [65]}, {"logit_bias": ((65, 100.0),), "stop_ids": (65,)}),
    ({"logit_bias": {"65": 100}, "stop": "AAA"}, {"logit_bias": ((65, 100.0),), "stop": ("AAA",)}),
    ({"logit_bias": {"65": 100}, "stop": ["x", "AA"]}, {"logit_bias": ((65, 100.0),), "stop": ("x", "AA")}),
    ({"stop": None, "seed": None, "n": None, "logit_bias": None, "stream": None, "user": "u", "suffix": None}, {}),
    ({"priority": -5, "timeout": 60, "response_format": {"type": "text"}, "best_of": 1}, {}),
    ({"a_field_of_tomorrow": {"x": 1}, "stream_options": {"y": 2}}, {}),
]


@pytest.mark.parametrize(("body", "params"), HONOURED, ids=lambda v: "-".join(v))
def test_a_field_does_what_the_python_api_does(
    http: httpx.Client, llm: LLM, body: dict[str, Any], params: dict[str, Any]
) -> None:
    expected = llm.generate(np.array(PROMPT, np.int32), SamplingParams(**{"max_tokens": 8} | params))
    done = post(http, body).json()
    (choice,) = done["choices"]
    assert choice["token_ids"] == list(expected.token_ids)
    assert choice["text"] == expected.text
    assert choice["finish_reason"] == expected.finish_reason
    assert done["usage"]["completion_tokens"] == len(expected.token_ids)


def test_every_honoured_field_changes_something(http: httpx.Client) -> None:
    """So that the comparison above could fail."""
    plain = token_ids(http, {})
    sampled = token_ids(http, {"temperature": 2, "seed": 3})
    for body, params in HONOURED:
        if params:
            without = sampled if set(params) & {"top_p", "top_k", "min_p"} else plain
            assert token_ids(http, body) != without, body


def test_a_stop_string_and_an_ending_token_stay_where_asked_for(http: httpx.Client) -> None:
    body = {"logit_bias": {"65": 100}, "stop": "AA", "stop_token_ids": [66]}
    assert post(http, body).json()["choices"][0]["text"] == ""
    assert post(http, body | {"include_stop_str_in_output": True}).json()["choices"][0]["text"] == "AA"
    body["logit_bias"] = {"66": 100}
    assert post(http, body).json()["choices"][0]["text"] == ""
    assert post(http, body | {"include_stop_str_in_output": True}).json()["choices"][0]["text"] == "B"


def test_special_tokens_are_shown_where_asked_for(http: httpx.Client) -> None:
    body = {"logit_bias": {str(EOS): 100}, "ignore_eos": True, "max_tokens": 2}
    assert post(http, body).json()["choices"][0]["text"] == ""
    assert post(http, body | {"skip_special_tokens": False}).json()["choices"][0]["text"] == "<eos><eos>"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_without_a_limit_an_answer_has_as_many_tokens_as_fit(http: httpx.Client, path: str) -> None:
    done = post(http, {"max_tokens": None, "ignore_eos": True}, path).json()
    assert done["usage"]["total_tokens"] == 512
    assert done["choices"][0]["finish_reason"] == "length"


def test_max_completion_tokens_goes_before_max_tokens(http: httpx.Client) -> None:
    done = post(http, {"max_completion_tokens": 3}, "/v1/chat/completions").json()
    assert done["usage"]["completion_tokens"] == 3


REFUSED = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 507}, "max_tokens"),
    ({"max_tokens": "8"}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 1}, "min_p"),
    ({"n": 0}, "n"),
    ({"n": 1000}, "n"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": [1]}, "stop[0]"),
    ({"stop_token_ids": [VOCAB]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"seed": 2**64}, "seed"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {"65": 101}}, "logit_bias"),
    ({"logit_bias": {"300": 1}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"min_tokens": 9}, "min_tokens"),
    ({"timeout": 0}, "timeout"),
    ({"priority": "high"}, "priority"),
    ({"stream": "yes"}, "stream"),
    ({"speculative": {"max_draft_tokens": 8}}, "speculative.max_draft_tokens"),
    ({"speculative": {"max_draft_tokens": -1}}, "speculative.max_draft_tokens"),
    ({"speculative": {"sources": ["web"]}}, "speculative.sources[0]"),
    ({"speculative": {"max_draft": 3}}, "speculative.max_draft"),
    ({"speculative": True}, "speculative"),
    ({"prediction": {"type": "image", "content": "x"}}, "prediction.type"),
    ({"prediction": {"content": [{"type": "image_url"}]}}, "prediction[0].type"),
    ({"model": "gpt-4"}, "model"),
]
ONLY_COMPLETIONS = [
    ({"suffix": "end"}, "suffix"),
    ({"best_of": 3}, "best_of"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [VOCAB]}, "prompt"),
    ({"prompt": [-1]}, "prompt[0]"),
    ({"prompt": [10**30]}, "prompt[0]"),
    ({"prompt": [[1], []]}, "prompt"),
    ({"prompt": [1.5]}, "prompt[0]"),
    ({"prompt": {"text": "a"}}, "prompt"),
    ({"prompt": [1] * 512, "max_tokens": None}, "prompt"),
]
ONLY_CHAT = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
    ),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
    ({"messages": [{"role": "user", "content": "x" * 600}], "max_tokens": None}, "messages"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": 3}, "logprobs"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"chat_template": "{{ x }}"}, "chat_template"),
    ({"chat_template_kwargs": 5}, "chat_template_kwargs"),
]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [("/v1/completions", *case) for case in [*REFUSED, *ONLY_COMPLETIONS]]
    + [("/v1/chat/completions", *case) for case in [*[c for c in REFUSED if c[0] != {"max_tokens": 507}], *ONLY_CHAT]],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    http: httpx.Client, path: str, body: dict[str, Any], param: str
) -> None:
    refused = post(http, body, path)
    error = refused.json()["error"]
    assert refused.status_code == (404 if param == "model" else 400), refused.text
    assert error["param"] == param, error
    assert error["message"]
    assert "\n" not in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_a_prompt_that_is_too_long_has_openais_code(http: httpx.Client) -> None:
    assert post(http, {"max_tokens": 507}).json()["error"]["code"] == "context_length_exceeded"
    assert post(http, {"model": "gpt-4"}).json()["error"]["code"] == "model_not_found"


def test_a_template_is_given_what_the_request_says_it_needs(tmp_path: Any) -> None:
    template = "{{ mood }}{% for m in messages %}{{ m.content }}{% endfor %}{{ '>' if add_generation_prompt }}"
    model = scripted_model(tmp_path, SCRIPT, template=template)
    with served(model) as base, httpx.Client(base_url=base, timeout=20) as http:
        body = {"messages": [{"role": "user", "content": "hi"}]}
        assert http.post("/tokenize", json=body).json()["tokens"] == list(b"hi>")
        more = body | {"chat_template_kwargs": {"mood": "sad "}, "add_generation_prompt": False}
        assert http.post("/tokenize", json=more).json()["tokens"] == list(b"sad hi")
        answer = http.post("/v1/chat/completions", json=more | {"max_tokens": 2}).json()
        assert answer["usage"]["prompt_tokens"] == len("sad hi")


def test_a_prediction_is_a_source_of_drafts_and_changes_nothing(tmp_path: Any) -> None:
    with (
        served(scripted_model(tmp_path, SCRIPT, Retrieval())) as base,
        httpx.Client(base_url=base, timeout=20) as http,
    ):
        body = {"logit_bias": {str(b): 100 for b in range(97, 123)}, "max_tokens": 30}
        plain = post(http, body).json()
        text = plain["choices"][0]["text"]
        for content in (text, [{"type": "text", "text": text[:10]}, {"type": "text", "text": text[10:]}]):
            guessed = post(http, body | {"prediction": {"type": "content", "content": content}}).json()
            details = guessed["usage"]["completion_tokens_details"]
            assert guessed["choices"] == plain["choices"]
            assert details["accepted_prediction_tokens"] > 15
            assert details["rejected_prediction_tokens"] >= 0
            assert guessed["metrics"]["speculative_decoding"]["num_spec_steps"] < 15
        wrong = post(http, body | {"prediction": {"type": "content", "content": text[::-1]}}).json()
        assert wrong["choices"] == plain["choices"]
        without = body | {"prediction": {"type": "content", "content": text}, "speculative": {"sources": ["context"]}}
        assert "prediction" not in post(http, without).json()["metrics"]["speculative_decoding"]["by_source"]
        refused = post(http, {"speculative": {"namespace": "nobody"}})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "speculative.namespace")


def test_tokens_and_text_are_turned_into_each_other(http: httpx.Client) -> None:
    told = http.post("/tokenize", json={"prompt": "aü", "return_token_strs": True}).json()
    assert told == {
        "count": 3,
        "max_model_len": 512,
        "tokens": [97, 0xC3, 0xBC],
        "token_strs": ["a", "bytes:\\xc3", "bytes:\\xbc"],
    }
    assert http.post("/detokenize", json={"tokens": [97, 0xC3, 0xBC]}).json() == {"prompt": "aü"}
    for path, body, param in (
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/detokenize", {"tokens": [VOCAB]}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ):
        refused = http.post(path, json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
