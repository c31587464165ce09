"""Bodies that are no requests: the right status, an error as OpenAI clients read it, and the server stays up."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from sssd.server.settings import Settings
from tests.helpers.serving import scripted_model, served, speaker

LIMIT = 100_000


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    model = scripted_model(tmp_path_factory.mktemp("toy"), speaker())
    with (
        served(model, Settings(names=("toy", "alias"), max_body_bytes=LIMIT)) as base,
        httpx.Client(base_url=base, timeout=20) as made,
    ):
        yield made


def refused(response: httpx.Response, status: int) -> dict[str, str]:
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


PATHS = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"prompt"',
        b"\xff\xfe",
        b'{"prompt": "\xff", "messages": [{"role": "user", "content": "\xff"}], "tokens": "\xff"}',
        b'{"prompt": "\\ud800", "messages": [{"role": "user", "content": "\\ud800"}], "tokens": "\\ud800"}',
        b"[" * 50_000,
        b'{"prompt":' + b"[" * 50_000,
        b'{"prompt": "a", "messages": [{"role": "user", "content": "a"}], "tokens": [], "model": NaN}',
        b'{"prompt": "a", "messages": [{"role": "user", "content": "a"}], "tokens": [1e999]} trailing',
        b"\0" * 100,
    ],
    ids=lambda b: b[:20].decode("latin-1"),
)
def test_what_is_no_json_of_ours_is_a_400(http: httpx.Client, path: str, body: bytes) -> None:
    refused(http.post(path, content=body), 400)


@pytest.mark.parametrize("path", PATHS)
def test_a_huge_body_is_refused_before_it_is_read(http: httpx.Client, path: str) -> None:
    error = refused(http.post(path, content=b'{"prompt": "' + b"a" * LIMIT + b'"}'), 413)
    assert str(LIMIT) in error["message"]

    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield b"a" * LIMIT

    refused(http.post(path, content=endless()), 413)


def test_paths_and_methods_that_are_not_there(http: httpx.Client) -> None:
    assert "/v1/embeddings" in refused(http.post("/v1/embeddings", json={}), 404)["message"]
    refused(http.get("/v1/completions"), 405)
    refused(http.delete("/v1/models"), 405)


def test_every_name_is_served_and_no_other(http: httpx.Client) -> None:
    assert [card["id"] for card in http.get("/v1/models").json()["data"]] == ["toy", "alias"]
    for name in ("toy", "alias", None):
        done = http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1, "model": name}).json()
        assert done["model"] == (name or "toy")
    error = refused(http.post("/v1/completions", json={"prompt": "a", "model": "scripted"}), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    refused(http.get("/v1/models/scripted"), 404)


def test_deep_values_and_odd_numbers_are_no_fault_of_ours(http: httpx.Client) -> None:
    deep = "[" * 400 + "]" * 400
    http.post("/v1/completions", content=f'{{"prompt": "a", "max_tokens": 1, "x": {deep}}}').raise_for_status()
    for number in ("1e999", "-1e999", "123456789012345678901234567890", "1e-400"):
        for field in ("temperature", "top_p", "max_tokens", "n", "seed", "priority", "timeout", "top_k"):
            body = f'{{"prompt": "a", "max_tokens": 1, "{field}": {number}}}'
            assert http.post("/v1/completions", content=body).status_code < 500, (field, number)


def test_no_template_and_a_template_that_fails(http: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> None:
    body = {"messages": [{"role": "tool", "content": "x"}], "max_tokens": 1}
    error = refused(http.post("/v1/chat/completions", json=body), 400)
    assert "the chat template refuses these messages: no tools" in error["message"]
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    for template in (None, "{{ messages[0].content + 5 }}", "{% for i in range(10**9) %}x{% endfor %}", "{% if %}"):
        model = scripted_model(tmp_path_factory.mktemp("toy"), speaker(), template=template)
        with served(model) as base:
            error = refused(httpx.post(f"{base}/v1/chat/completions", json=body), 400)
            assert error["param"] == "messages"
