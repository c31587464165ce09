"""Text completions: every kind of prompt, echo, log-probabilities, several answers; checked against the Python API."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from sssd.config import SamplingParams
from sssd.llm import LLM
from tests.helpers.serving import Lucky, events, python_api, scripted_model, served, speaker

SCRIPT = speaker()


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with (
        served(scripted_model(tmp_path_factory.mktemp("toy"), SCRIPT, Lucky(SCRIPT))) as base,
        httpx.Client(base_url=base, timeout=20) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with python_api(tmp_path_factory.mktemp("toy"), SCRIPT) as plain:
        yield plain


def complete(http: httpx.Client, **body: Any) -> dict[str, Any]:
    done = http.post("/v1/completions", json={"temperature": 0} | body)
    assert done.status_code == 200, done.text
    return done.json()


def streamed(http: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    with http.stream("POST", "/v1/completions", json={"temperature": 0, "stream": True} | body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        return list(events(response))


def whole_of(chunks: list[dict[str, Any]], index: int) -> dict[str, Any]:
    """A choice put together from a stream's events."""
    own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
    whole = dict(own[-1], text="".join(c["text"] for c in own))
    if own[0]["logprobs"] is not None:
        names = own[0]["logprobs"]
        whole["logprobs"] = {name: [v for c in own for v in c["logprobs"][name]] for name in names}
    return whole


def test_a_prompt_may_be_text_or_ids_or_lists_of_them(http: httpx.Client) -> None:
    one = complete(http, prompt="Say:", max_tokens=20)
    ids = complete(http, prompt=list(b"Say:"), max_tokens=20)
    many = complete(http, prompt=["Say:", "Now say:"], max_tokens=20)
    lists = complete(http, prompt=[list(b"Say:"), list(b"Now say:")], max_tokens=20)
    assert one["choices"] == ids["choices"]
    assert many["choices"] == lists["choices"]
    assert [c["index"] for c in many["choices"]] == [0, 1]
    assert many["choices"][0]["text"] == one["choices"][0]["text"]
    assert many["usage"]["prompt_tokens"] == len("Say:") + len("Now say:")
    assert many["usage"]["completion_tokens"] == 40


def test_logprobs_are_the_python_apis_whatever_was_accepted(http: httpx.Client, llm: LLM) -> None:
    done = llm.generate("Say:", SamplingParams(max_tokens=24, logprobs=2))
    for choice in (
        complete(http, prompt="Say:", max_tokens=24, logprobs=2)["choices"][0],
        whole_of(streamed(http, prompt="Say:", max_tokens=24, logprobs=2), 0),
    ):
        told = choice["logprobs"]
        assert told["token_logprobs"] == [one.logprob for one in done.logprobs]
        assert len(told["tokens"]) == len(told["top_logprobs"]) == len(told["text_offset"]) == 24
        assert all(
            max(top.values()) == own for top, own in zip(told["top_logprobs"], told["token_logprobs"], strict=True)
        )
        assert choice["text"] == done.text
        assert told["text_offset"] == list(done.offsets)


def test_tokens_that_are_no_text_alone_are_shown_by_their_bytes(http: httpx.Client) -> None:
    told = complete(http, prompt="Say:", max_tokens=4, logprobs=0)["choices"][0]["logprobs"]
    assert told["tokens"] == ["G", "r", "bytes:\\xc3", "bytes:\\xbc"]
    assert told["text_offset"] == [0, 1, 2, 2]


@pytest.mark.parametrize("prompt", ["Sprich, 東京:", list("Sprich, 東京:".encode())])
def test_echo_gives_the_prompt_back_with_its_logprobs(http: httpx.Client, prompt: str | list[int]) -> None:
    text = "Sprich, 東京:"
    n = len(text.encode())
    body = {"prompt": prompt, "max_tokens": 6, "logprobs": 1, "echo": True}
    whole = complete(http, **body)
    (choice,) = whole["choices"]
    told = choice["logprobs"]
    assert choice["text"] == text + complete(http, prompt=prompt, max_tokens=6)["choices"][0]["text"]
    assert whole["usage"]["completion_tokens"] == 6
    assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
    assert told["token_logprobs"][1:n] == pytest.approx(prompt_logprobs(text), abs=1e-5)
    plain = complete(http, prompt=prompt, max_tokens=6, logprobs=0)["choices"][0]["logprobs"]
    before = [len(text.encode()[:i].decode(errors="ignore")) for i in range(n)]
    assert told["text_offset"] == before + [len(text) + at for at in plain["text_offset"]]
    assert whole_of(streamed(http, **body), 0) == choice


def prompt_logprobs(text: str) -> list[float]:
    """By hand: the script's scores at every prefix."""
    tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    found = []
    for i in range(1, len(tokens)):
        scores = SCRIPT(tokens[:i]).astype(np.float64)
        found.append(float(scores[tokens[i]] - np.log(np.exp(scores).sum())))
    return found


@pytest.mark.parametrize("chunk_of", [1, 64])
def test_what_lm_eval_asks_for_a_loglikelihood(http: httpx.Client, chunk_of: int) -> None:
    context, continuation = list(b"Say:"), list("Grüße aus".encode())
    body = {"max_tokens": 1, "logprobs": 1, "echo": True, "seed": 1234, "prompt": [context + continuation] * chunk_of}
    for choice in complete(http, **body)["choices"]:
        told = choice["logprobs"]
        own = told["token_logprobs"][len(context) : -1]
        assert len(own) == len(continuation)
        assert all(max(top.values()) == p for top, p in zip(told["top_logprobs"][len(context) : -1], own, strict=True))
        assert all(not math.isinf(p) for p in own)


def test_no_tokens_at_all_with_echo(http: httpx.Client) -> None:
    body = {"prompt": "Say:", "max_tokens": 0, "echo": True, "logprobs": 0}
    whole = complete(http, **body)
    (choice,) = whole["choices"]
    assert choice["text"] == "Say:"
    assert len(choice["logprobs"]["tokens"]) == 4
    assert (whole["usage"]["completion_tokens"], whole["usage"]["total_tokens"]) == (0, 4)
    assert whole_of(streamed(http, **body), 0) == choice


def test_several_answers_draw_by_seeds_of_their_own_and_are_repeatable(http: httpx.Client, llm: LLM) -> None:
    body = {"prompt": "Say:", "max_tokens": 40, "temperature": 1.5, "seed": 7, "n": 4}
    first, again = complete(http, **body), complete(http, **body)
    texts = [c["text"] for c in first["choices"]]
    assert texts == [c["text"] for c in again["choices"]]
    assert len(set(texts)) == 4
    assert texts[0] == complete(http, **body | {"n": 1})["choices"][0]["text"], "n changes nothing for the first"
    assert texts[0] == llm.generate("Say:", SamplingParams(max_tokens=40, temperature=1.5, seed=7)).text
    chunks = streamed(http, **body)
    assert [whole_of(chunks, i)["text"] for i in range(4)] == texts
    assert first["usage"]["prompt_tokens"] == 4, "a prompt counts once"
    other = complete(http, **body | {"seed": 8})
    assert [c["text"] for c in other["choices"]] != texts


def test_usage_is_told_as_asked(http: httpx.Client) -> None:
    body = {"prompt": "Say:", "max_tokens": 12}
    assert all("usage" not in c for c in streamed(http, **body))
    last = streamed(http, **body, stream_options={"include_usage": True})
    assert all(c["usage"] is None for c in last[:-1])
    assert last[-1]["choices"] == []
    assert last[-1]["usage"]["completion_tokens"] == 12
    always = streamed(http, **body, stream_options={"include_usage": True, "continuous_usage_stats": True, "x": 1})
    counts = [c["usage"]["completion_tokens"] for c in always]
    assert counts == sorted(counts)
    assert counts[-2:] == [12, 12]


def test_drafting_is_reported(http: httpx.Client) -> None:
    done = complete(http, prompt="Say:", max_tokens=60)
    told = done["metrics"]["speculative_decoding"]
    assert told["num_spec_tokens"] == 7
    assert told["num_accepted_draft_tokens"] == 60 - told["num_spec_steps"]
    assert sum(i * n for i, n in enumerate(told["acceptance_histogram"])) == told["num_accepted_draft_tokens"]
    assert told["mean_acceptance_length"] == 60 / told["num_spec_steps"]
    off = complete(http, prompt="Say:", max_tokens=60, speculative={"enabled": False})
    assert off["choices"][0]["text"] == done["choices"][0]["text"]
    assert off["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0
    streams = streamed(http, prompt="Say:", max_tokens=60, stream_options={"include_usage": True})
    assert streams[-1]["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0


def test_token_ids_are_told_where_asked_for(http: httpx.Client) -> None:
    (choice,) = complete(http, prompt="Say:", max_tokens=3, return_token_ids=True)["choices"]
    assert choice["token_ids"] == list(b"Gr\xc3")
    assert choice["prompt_token_ids"] == list(b"Say:")
    chunks = streamed(http, prompt="Say:", max_tokens=3, return_token_ids=True)
    assert [i for c in chunks for i in c["choices"][0]["token_ids"]] == list(b"Gr\xc3")


def test_every_event_is_one_line_of_json(http: httpx.Client) -> None:
    body = {"prompt": "Say:", "max_tokens": 30, "stream": True}
    raw = http.post("/v1/completions", json=body).text
    parts = raw.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    heads = {(e["id"], e["created"], e["model"], e["object"]) for p in parts[:-2] if (e := json.loads(p[6:]))}
    assert len(heads) == 1
