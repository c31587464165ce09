"""Keys, limits, health, numbers, logs and draining, over HTTP on a scripted target."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sssd.drafting.datastore import Datastore, build
from sssd.drafting.remembering import Remembering
from sssd.errors import BundleError, ConfigError
from sssd.model import Model
from sssd.server.keys import ApiKey, KeyRing, digest_of
from sssd.server.logs import LOGGERS, start_logging
from sssd.server.run import Operation
from sssd.server.settings import Settings
from tests.helpers.operated import Operated, operated, slowed
from tests.helpers.serving import TEXT, VOCAB, Lucky, scripted_model, speaker

SECRET = "sk-a-secret-of-the-editor"
OTHER = "a secret of the batch client"
KEYS = KeyRing(
    [
        ApiKey("editor", digest_of(SECRET), ("default", "code"), max_tokens=12),
        ApiKey("batch", digest_of(OTHER), requests_per_minute=2),
    ]
)
BEARER = {"authorization": f"Bearer {SECRET}"}


@pytest.fixture
def model(tmp_path: Path) -> Model:
    script = speaker()
    return scripted_model(tmp_path / "toy", script, Lucky(script))


@pytest.fixture
def slow(tmp_path: Path) -> Model:
    return scripted_model(tmp_path / "slow", slowed(speaker(), 0.01), n_slots=2)


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    out = io.StringIO()
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    start_logging("json", out)
    yield out
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def error_of(response: httpx.Response, status: int) -> dict[str, str]:
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    return response.json()["error"]


def scraped(server: Operated) -> dict[str, float]:
    lines = server.client.get("/metrics").text.splitlines()
    return {name: float(value) for name, _, value in (x.rpartition(" ") for x in lines if x[0] != "#")}


def test_while_the_model_loads_the_server_is_alive_but_not_ready(model: Model) -> None:
    go_on = threading.Event()

    def load() -> Model:
        go_on.wait(20)
        return model

    with operated(load) as server:
        assert server.client.get("/health").status_code == 200
        refused = server.client.get("/ready")
        assert error_of(refused, 503)["message"] == "the model is loading"
        asked = server.complete()
        assert error_of(asked, 503)["code"] == "loading"
        assert asked.headers["retry-after"] == "5"
        assert server.client.get("/stats").json()["loop"] is None
        assert scraped(server) == {"sssd:ready": 0}
        assert "<title>sssd</title>" in server.client.get("/").text
        go_on.set()
        assert server.ready().complete().status_code == 200


def test_a_model_that_does_not_load_ends_the_server(model: Model) -> None:
    def load() -> Model:
        raise BundleError("no bundle at x")

    with operated(load) as server:
        assert server.over()
        assert isinstance(server.failure, BundleError)


def test_without_keys_everybody_may_call(model: Model) -> None:
    with operated(lambda: model) as server:
        assert server.ready().complete(headers={"authorization": "Bearer EMPTY"}).status_code == 200
        assert server.complete().json()["choices"][0]["text"] == TEXT[:6]


def test_a_key_is_asked_for_and_never_repeated(model: Model, log: io.StringIO) -> None:
    with operated(lambda: model, Operation(keys=KEYS)) as server:
        server.ready()
        missing = server.complete()
        assert error_of(missing, 401)["code"] == "missing_api_key"
        assert missing.headers["www-authenticate"] == "Bearer"
        wrong = server.complete(headers={"authorization": "Bearer sk-wrong-but-secret"})
        assert error_of(wrong, 401)["code"] == "invalid_api_key"
        assert error_of(server.client.get("/v1/models"), 401)["code"] == "missing_api_key"
        assert server.complete(headers=BEARER).status_code == 200
        assert server.complete(headers={"x-api-key": SECRET}).status_code == 200
        assert server.client.get(f"/v1/models?api_key={SECRET}", headers=BEARER).status_code == 200
        for path in ("/health", "/ready", "/metrics", "/stats", "/"):
            assert server.client.get(path).status_code == 200
        assert "secret" not in missing.text + wrong.text
    text = log.getvalue()
    assert '"client": "editor"' in text
    assert "secret" not in text
    assert "Say:" not in text


def test_a_key_limits_tokens_and_namespaces(model: Model) -> None:
    with operated(lambda: model, Operation(keys=KEYS)) as server:
        server.ready()
        too_many = server.complete(headers=BEARER, max_tokens=13)
        assert error_of(too_many, 400) | {"message": ""} == {
            "message": "",
            "type": "invalid_request_error",
            "param": "max_tokens",
            "code": None,
        }
        assert server.complete(headers=BEARER, max_tokens=None).json()["usage"]["completion_tokens"] == 12
        other = server.complete(headers=BEARER, speculative={"namespace": "batch"})
        assert error_of(other, 403)["param"] == "speculative.namespace"
        assert server.complete(headers=BEARER, speculative={"namespace": "code"}).status_code == 200


def test_a_key_limits_requests_a_minute(model: Model) -> None:
    with operated(lambda: model, Operation(keys=KEYS)) as server:
        answers = [server.ready().complete(headers={"x-api-key": OTHER}) for _ in range(3)]
        assert [a.status_code for a in answers] == [200, 200, 429]
        assert error_of(answers[2], 429)["code"] == "rate_limit_exceeded"
        assert 1 <= int(answers[2].headers["retry-after"]) <= 30


def test_a_request_id_is_taken_over_or_made(model: Model, log: io.StringIO) -> None:
    with operated(lambda: model) as server:
        server.ready()
        assert server.complete(headers={"x-request-id": "job-7.a"}).headers["x-request-id"] == "job-7.a"
        made = server.complete().headers["x-request-id"]
        assert len(made) == 24
        odd = server.complete(headers={"x-request-id": "a b\tc"}).headers["x-request-id"]
        assert odd not in ("a b\tc", made)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    told = {line["request_id"]: line for line in lines if line["message"] == "request"}
    assert told["job-7.a"]["status"] == 200
    assert {"method", "path", "ms", "time", "level"} <= set(told[made])


def test_a_body_that_is_too_large_is_refused(model: Model) -> None:
    with operated(lambda: model, settings=Settings(max_body_bytes=1000)) as server:
        assert error_of(server.ready().complete("x" * 1001), 413)["code"] == "body_too_large"
        assert server.complete().status_code == 200


def test_pages_of_other_origins_may_call_where_they_are_allowed(model: Model) -> None:
    asks = {"origin": "https://ui.example", "access-control-request-method": "POST"}
    with operated(lambda: model, Operation(origins=("https://ui.example",), keys=KEYS)) as server:
        server.ready()
        allowed = server.client.options("/v1/chat/completions", headers=asks)
        assert allowed.headers["access-control-allow-origin"] == "https://ui.example"
        other = server.client.options("/v1/chat/completions", headers=asks | {"origin": "https://else.example"})
        assert "access-control-allow-origin" not in other.headers


def test_numbers_agree_with_what_clients_got(model: Model) -> None:
    with operated(lambda: model) as server:
        server.ready()
        usages = [server.complete(max_tokens=n).json() for n in (5, 17, 30)]
        server.complete("Say:", max_tokens=20, stop=["K"])
        found = scraped(server)
        spoken = sum(u["usage"]["completion_tokens"] for u in usages) + len("Grüße aus K".encode())
        assert found["sssd:generation_tokens_total"] == spoken
        assert found['sssd:requests_total{finish="length"}'] == 3
        assert found['sssd:requests_total{finish="stop"}'] == 1
        assert found["sssd:time_to_first_token_seconds_count"] == 4
        assert (
            found['sssd:draft_tokens_total{source="context"}']
            >= found['sssd:accepted_tokens_total{source="context"}']
            > 0
        )
        assert sum(v for k, v in found.items() if k.startswith("sssd:accepted_at_total")) == sum(
            v for k, v in found.items() if k.startswith("sssd:accepted_tokens_total")
        )
        stats = server.client.get("/stats").json()
        assert (stats["phase"], stats["model"], stats["active_requests"]) == ("ready", "scripted", 0)
        assert stats["loop"]["slots"] == 4
        assert stats["generated_tokens"] == spoken


def test_numbers_say_what_drafts_come_from_and_when_a_file_has_vanished(tmp_path: Path) -> None:
    model = scripted_model(tmp_path / "toy", speaker())
    fingerprint = model.tokenizer.fingerprint()
    store, live = tmp_path / "texts.store", tmp_path / "answers.live"
    build(store, [list(TEXT.encode())], tokenizer=fingerprint, vocab_size=VOCAB)
    drafter = Remembering(live, tokenizer=fingerprint, vocab_size=VOCAB)
    with Datastore(store, tokenizer=fingerprint) as opened:
        drafter.attach(opened)
    model = scripted_model(tmp_path / "toy", speaker(), drafter)
    with operated(lambda: model, Operation(datastore=store)) as server:
        assert server.ready().complete(max_tokens=40).status_code == 200
        found = scraped(server)
        assert found["sssd:datastore_tokens"] >= len(TEXT.encode())
        assert found["sssd:datastore_present"] == 1
        assert found['sssd:draft_hits_total{source="datastore"}'] > 0
        store.unlink()
        assert scraped(server)["sssd:datastore_present"] == 0
        assert server.client.get("/stats").json()["datastore"]["present"] is False
        assert server.complete(max_tokens=40).status_code == 200
        drafter.live.flush()
        assert server.client.get("/stats").json()["live"]["documents"] == 2


def events(response: httpx.Response) -> Iterator[dict[str, object]]:
    for line in response.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line[6:])


def test_a_trace_shows_every_token_and_where_it_came_from(model: Model) -> None:
    body = {"prompt": "Say:", "max_tokens": 60, "temperature": 0, "stream": True, "speculative": {"trace": True}}
    body["stream_options"] = {"include_usage": True}
    with operated(lambda: model) as server:
        server.ready()
        with server.client.stream("POST", "/v1/completions", json=body) as response:
            got = list(events(response))
        whole = server.complete(max_tokens=60).json()
        refused = server.complete(speculative={"trace": True})
        assert error_of(refused, 400)["param"] == "speculative.trace"
    *steps, last = got
    assert "speculative" not in last
    for event in steps:
        assert "".join(t["text"] for t in event["speculative"]["tokens"]) == event["choices"][0]["text"]
    tokens = [t for e in steps for t in e["speculative"]["tokens"]]
    rejected = [t for e in steps for t in e["speculative"]["rejected"]]
    assert "".join(t["text"] for t in tokens) == whole["choices"][0]["text"]
    assert len(tokens) == 60
    drafting = last["metrics"]["speculative_decoding"]
    assert {t["source"] for t in tokens} == {None, "context"}
    assert sum(t["source"] == "context" for t in tokens) == drafting["num_accepted_draft_tokens"]
    assert len(rejected) == drafting["num_draft_tokens"] - drafting["num_accepted_draft_tokens"] > 0
    assert max(t["depth"] for t in rejected) <= 7


def test_draining_lets_calls_finish_and_takes_no_more(slow: Model) -> None:
    with operated(lambda: slow) as server:
        server.ready()
        answers: list[httpx.Response] = []
        calls = [threading.Thread(target=lambda: answers.append(server.complete(max_tokens=60))) for _ in range(3)]
        for call in calls:
            call.start()
        while server.client.get("/stats").json()["active_requests"] < 3:
            pass
        server.run.on_signal()
        while server.client.get("/ready").status_code != 503:
            pass
        assert server.client.get("/health").status_code == 200
        assert error_of(server.complete(), 503)["code"] == "draining"
        assert not answers
        for call in calls:
            call.join()
        assert [a.json()["usage"]["completion_tokens"] for a in answers] == [60] * 3
        assert server.over()
        assert server.failure is None


@pytest.mark.parametrize("second_signal", [False, True])
def test_a_drain_ends_at_its_limit_or_at_a_second_signal(slow: Model, second_signal: bool) -> None:
    with operated(lambda: slow, Operation(drain_seconds=60 if second_signal else 0.05)) as server:
        server.ready()
        body = {"prompt": "Say:", "max_tokens": 450, "temperature": 0, "stream": True}
        with server.client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            server.run.on_signal()
            if second_signal:
                server.run.on_signal()
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert "shutting down" in json.loads(rest[-2][6:])["error"]["message"]
        assert server.over()


def test_health_says_when_the_loop_has_died(model: Model) -> None:
    def broken() -> None:
        raise RuntimeError("a fault of ours")

    with operated(lambda: model) as server:
        server.ready()
        model.loop.scheduler.plan = broken  # type: ignore[method-assign,assignment]
        assert error_of(server.complete(), 500)["message"].startswith("the loop failed")
        while server.client.get("/health").status_code == 200:
            pass
        assert error_of(server.client.get("/health"), 503)["code"] == "dead"
        assert server.client.get("/ready").status_code == 503
        assert server.complete().status_code == 503


def test_the_page_is_served_with_what_keeps_it_safe(model: Model) -> None:
    kinds = {"/": "text/html", "/page.js": "text/javascript", "/page.css": "text/css", "/icon.svg": "image/svg+xml"}
    with operated(lambda: model) as server:
        for path, kind in kinds.items():
            response = server.client.get(path)
            assert response.headers["content-type"].startswith(kind)
            assert "default-src 'none'" in response.headers["content-security-policy"]
            assert "https://" not in response.text
            assert "http://" not in response.text.replace("http://www.w3.org/2000/svg", "")
        assert server.client.head("/").headers["content-length"] == str(len(server.client.get("/").content))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"drain_seconds": -1}, "drain_seconds is -1"),
        ({"certificate": Path("x")}, "give both or none"),
        ({"certificate": Path("absent"), "private_key": Path("absent")}, "cannot read absent: No such file"),
    ],
)
def test_an_operator_mistake_is_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Operation(**options)  # type: ignore[arg-type]
    assert says in str(caught.value)


def test_files_that_are_no_certificate_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("nothing")
    with pytest.raises(ConfigError, match="are no certificate with its unencrypted private key"):
        Operation(certificate=tmp_path / "x", private_key=tmp_path / "x")
