"""Delivery: clients that leave, read slowly or come in crowds; failures before, after and while a stream runs."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from sssd.model import Model
from sssd.server.serving import _Mailbox
from tests.helpers.serving import Lucky, events, python_api, scripted_model, served, speaker

SCRIPT = speaker()
BODY = {"prompt": "Say:", "max_tokens": 400, "temperature": 0, "speculative": {"enabled": False}}


def slow_model(directory: Path, seconds: float = 0.005, **options: Any) -> Model:
    """A token takes so long."""

    def script(context: np.ndarray) -> np.ndarray:
        time.sleep(seconds)
        return SCRIPT(context)

    return scripted_model(directory, script, **options)


def wait_until(done: Any, seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[tuple[Model, httpx.Client]]:
    model = slow_model(tmp_path)
    with served(model) as base, httpx.Client(base_url=base, timeout=20) as http:
        yield model, http


def test_a_stream_whose_client_leaves_is_cancelled(slow: tuple[Model, httpx.Client]) -> None:
    model, http = slow
    with http.stream("POST", "/v1/completions", json=BODY | {"stream": True, "n": 3}) as response:
        next(events(response))
        wait_until(lambda: len(model.loop.scheduler) == 3)
    wait_until(lambda: not len(model.loop.scheduler), seconds=3)
    assert model.loop.scheduler.check() == []


def test_a_whole_answer_whose_client_leaves_is_cancelled(slow: tuple[Model, httpx.Client]) -> None:
    model, http = slow
    with pytest.raises(httpx.ReadTimeout):
        http.post("/v1/completions", json=BODY, timeout=0.2)
    wait_until(lambda: not len(model.loop.scheduler), seconds=1)


def test_a_client_that_does_not_read_keeps_nobody_waiting(tmp_path: Path) -> None:
    model = scripted_model(tmp_path, SCRIPT, max_len=2048)
    body = json.dumps(BODY | {"stream": True, "logprobs": 20, "max_tokens": 1000}).encode()
    with served(model) as base, httpx.Client(base_url=base, timeout=20) as http:
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.connect(("127.0.0.1", int(base.rsplit(":", 1)[1])))
            head = f"host: x\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            lazy.sendall(b"POST /v1/completions HTTP/1.1\r\n" + head.encode() + body)
            wait_until(lambda: len(model.loop.scheduler))
            assert http.post("/v1/completions", json=BODY).status_code == 200
            wait_until(lambda: not len(model.loop.scheduler), seconds=20)  # its answer is complete, unread
            text = b""
            while data := lazy.recv(1 << 16):
                text += data
        assert text.count(b'"token_logprobs":[') == 1000
        assert b"data: [DONE]\n\n" in text


def test_when_too_many_wait_the_rest_is_told_to_come_again(tmp_path: Path) -> None:
    model = slow_model(tmp_path, n_slots=1, max_waiting=1)
    body = BODY | {"max_tokens": 40}
    with (
        served(model) as base,
        httpx.Client(base_url=base, timeout=20) as http,
        ThreadPoolExecutor(6) as pool,
        openai.OpenAI(base_url=f"{base}/v1", api_key="x", max_retries=20) as client,
    ):
        got = list(pool.map(lambda _: http.post("/v1/completions", json=body), range(6)))
        codes = sorted(r.status_code for r in got)
        assert codes[0] == 200
        assert codes[-1] == 429
        assert set(codes) == {200, 429}
        refused = next(r for r in got if r.status_code == 429)
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "queue_full"
        all_or_none = http.post("/v1/completions", json=body | {"n": 5})
        assert all_or_none.status_code == 429
        wait_until(lambda: not len(model.loop.scheduler))
        busy = pool.submit(http.post, "/v1/completions", json=body | {"n": 2})
        answer = client.completions.create(model="scripted", prompt="Say:", max_tokens=5, temperature=0)
        assert answer.usage.completion_tokens == 5, "the client's own retries get through"
        assert busy.result().status_code == 200


def test_a_failure_before_and_after_the_stream_began(tmp_path: Path) -> None:
    fails = {"fails_at": frozenset({10, 20}), "n_slots": 1}
    with (
        served(scripted_model(tmp_path, SCRIPT, **fails)) as base,
        httpx.Client(base_url=base, timeout=20) as http,
        openai.OpenAI(base_url=f"{base}/v1", api_key="x") as client,
    ):
        asked = {"model": "scripted", "messages": [{"role": "user", "content": "?"}], "temperature": 0}
        stream = client.chat.completions.create(**asked, max_tokens=400, stream=True)
        with pytest.raises(openai.APIError, match="scripted failure of forward 10"):
            list(stream)
        failed = http.post("/v1/completions", json=BODY)
        assert failed.status_code == 500
        assert failed.headers["x-should-retry"] == "false"
        assert "scripted failure of forward 20" in failed.json()["error"]["message"]
        raw = http.post("/v1/completions", json=BODY | {"max_tokens": 5, "stream": True}).text
        assert raw.endswith("data: [DONE]\n\n"), "the server goes on"


def test_a_stream_that_fails_ends_with_an_error_and_done(tmp_path: Path) -> None:
    with served(scripted_model(tmp_path, SCRIPT, fails_at=frozenset({3}))) as base:
        raw = httpx.post(f"{base}/v1/completions", json=BODY | {"stream": True}, timeout=20).text
        *_, error, done, _ = raw.split("\n\n")
        assert json.loads(error.removeprefix("data: "))["error"]["type"] == "server_error"
        assert done == "data: [DONE]"


def test_a_deadline_is_a_timeout_by_name(slow: tuple[Model, httpx.Client]) -> None:
    model, http = slow
    late = http.post("/v1/completions", json=BODY | {"timeout": 0.1})
    assert (late.status_code, late.json()["error"]["code"]) == (408, "timeout")
    assert late.headers["x-should-retry"] == "false"
    raw = http.post("/v1/completions", json=BODY | {"timeout": 0.1, "stream": True}).text
    assert '"code":"timeout"' in raw
    assert not len(model.loop.scheduler)


def test_more_important_requests_go_first(tmp_path: Path) -> None:
    model = slow_model(tmp_path, n_slots=1)
    done: list[int] = []
    with served(model) as base, httpx.Client(base_url=base, timeout=20) as http, ThreadPoolExecutor(4) as pool:

        def ask(priority: int) -> None:
            http.post("/v1/completions", json=BODY | {"max_tokens": 30, "priority": priority})
            done.append(priority)

        first = pool.submit(ask, 0)
        wait_until(lambda: len(model.loop.scheduler))
        rest = [pool.submit(ask, p) for p in (3, 1, 2)]
        for one in [first, *rest]:
            one.result()
    assert done == [0, 1, 2, 3]


def test_a_pause_is_bridged_by_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Mailbox, "PAUSE", 0.02)
    with served(slow_model(tmp_path, seconds=0.1)) as base:
        raw = httpx.post(f"{base}/v1/completions", json=BODY | {"max_tokens": 3, "stream": True}, timeout=20).text
        assert raw.count(": waiting\n\n") > 3
        assert raw.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("seed", range(4))
def test_stream_whole_and_python_api_agree_for_random_accepted_lengths_and_ends(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    script = speaker(end=int(rng.integers(20, 80)))
    cases = [
        {"max_tokens": int(rng.integers(1, 90)), "temperature": float(rng.choice([0.0, 1.2])), "seed": i}
        | ({"stop": [["東", "🙂 "], ["später", "ü"], ["👧"]][i % 3]} if i % 2 else {})
        for i in range(12)
    ]

    async def all_of(base: str) -> list[tuple[str, str, str | None, int]]:
        async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="x") as client:
            return await asyncio.gather(*(one(client, case) for case in cases))

    async def one(client: openai.AsyncOpenAI, case: dict[str, Any]) -> tuple[str, str, str | None, int]:
        asked = {"model": "scripted", "prompt": "Say:"} | case
        whole = await client.completions.create(**asked)
        text, finish, tokens = "", None, 0
        options = {"include_usage": True}
        async for chunk in await client.completions.create(**asked, stream=True, stream_options=options):
            for choice in chunk.choices:
                text += choice.text
                finish = choice.finish_reason or finish
            tokens = chunk.usage.completion_tokens if chunk.usage else tokens
        assert (whole.choices[0].text, whole.choices[0].finish_reason) == (text, finish)
        assert whole.usage.completion_tokens == tokens
        return text, text, finish, tokens

    with served(scripted_model(tmp_path / "served", script, Lucky(script, seed))) as base:
        got = asyncio.run(all_of(base))
    from sssd.config import SamplingParams

    with python_api(tmp_path / "plain", script) as llm:
        for case, (text, _, finish, tokens) in zip(cases, got, strict=True):
            stop = case.get("stop", ())
            done = llm.generate("Say:", SamplingParams(**case | {"stop": tuple(stop)}))
            assert (done.text, done.finish_reason, len(done.token_ids)) == (text, finish, tokens)
