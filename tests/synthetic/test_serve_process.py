"""`sssd serve` as a process of its own, on a tiny exported model: signals, TLS, --check, and an operator's mistakes."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import trustme

from tests.helpers.tiny_directory import write_directory

SSSD = [sys.executable, "-c", "from sssd.cli import main; main()"]
SECRET = "sk-0123456789-not-to-be-seen"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    write_directory(directory / "model")
    done = run("export", directory / "model", "--out", directory / "bundle")
    assert done.returncode == 0, done.stderr
    return directory / "bundle"


def run(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SSSD, *map(str, args)], capture_output=True, text=True, timeout=120)


class Process:
    """A running server and the lines it logs."""

    def __init__(self, *args: str | Path, verify: ssl.SSLContext | bool = True) -> None:
        command = [*SSSD, "serve", "--port", "0", "--log", "json", *map(str, args)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        first = self.process.stderr.readline()
        assert first.startswith("listening on "), first + self.process.stderr.read()
        self.lines: list[str] = []
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr or ()), daemon=True)
        self._reader.start()
        url = first.removeprefix("listening on ").strip().replace("127.0.0.1", "localhost")
        self.client = httpx.Client(base_url=url, timeout=60, verify=verify, trust_env=False)

    def ready(self) -> Process:
        end = time.monotonic() + 60
        while self.client.get("/ready").status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.02)
        return self

    def complete(self, max_tokens: int = 8, **headers: str) -> httpx.Response:
        body = {"prompt": "a b", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        return self.client.post("/v1/completions", json=body, headers=headers)

    def ended(self) -> int:
        code = self.process.wait(60)
        self._reader.join(10)
        return code

    @property
    def log(self) -> str:
        return "".join(self.lines)


@contextmanager
def serving(*args: str | Path, verify: ssl.SSLContext | bool = True) -> Iterator[Process]:
    process = Process(*args, verify=verify)
    try:
        yield process
    finally:
        process.client.close()
        process.process.kill()
        process.ended()
        for pipe in (process.process.stdout, process.process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order(tiny: Path, how: signal.Signals, tmp_path: Path) -> None:
    with serving("--engine", tiny, "--live", tmp_path / "live") as server:
        assert server.ready().complete().json()["usage"]["completion_tokens"] == 8
        server.process.send_signal(how)
        assert server.ended() == 0
        messages = [json.loads(line)["message"] for line in server.lines]
        assert messages[-2:] == ["draining", "stopped"]
    assert run("datastore", "inspect", tmp_path / "live").returncode == 0


def test_it_can_be_ended_while_it_loads(tiny: Path) -> None:
    with serving("--engine", tiny) as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == 0


def test_https_with_a_certificate(tiny: Path, tmp_path: Path) -> None:
    ca = trustme.CA()
    issued = ca.issue_cert("localhost")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    trusting = ssl.create_default_context()
    ca.configure_trust(trusting)
    with serving("--engine", tiny, "--tls-cert", certificate, "--tls-key", key, verify=trusting) as server:
        assert str(server.client.base_url).startswith("https://")
        assert server.ready().complete().status_code == 200
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(str(server.client.base_url), trust_env=False)
        server.process.terminate()
        assert server.ended() == 0
    ca.issue_cert("elsewhere").private_key_pem.write_to_path(key)
    refused = run("serve", "--engine", tiny, "--tls-cert", certificate, "--tls-key", key)
    assert refused.returncode == 1
    assert "no certificate with its unencrypted private key" in refused.stderr


def test_a_configuration_file_with_keys(tiny: Path, tmp_path: Path) -> None:
    keys, config = tmp_path / "keys.yaml", tmp_path / "serve.yaml"
    keys.write_text(f"keys:\n  - name: one\n    key: {SECRET}\n")
    keys.chmod(0o600)
    config.write_text(f"engine: {tiny}\napi-key-file: {keys}\nname: [small, tiny]\nslots: 2\n")
    with serving("--config", config) as server:
        assert server.ready().complete().status_code == 401
        assert server.complete(authorization=f"Bearer {SECRET}x").status_code == 401
        assert server.complete(authorization=f"Bearer {SECRET}").json()["model"] == "small"
        assert server.client.get("/stats").json()["loop"]["slots"] == 2
        server.process.terminate()
        assert server.ended() == 0
        assert SECRET not in server.log
        assert '"client": "one"' in server.log


def test_check_says_in_one_line_whether_the_bundle_works_here(tiny: Path) -> None:
    done = run("serve", "--engine", tiny, "--check")
    assert done.returncode == 0, done.stderr
    assert "works here: 5 shapes" in done.stdout
    assert done.stdout.count("\n") == 1
    as_json = json.loads(run("serve", "--engine", tiny, "--check", "--json").stdout)
    assert [s["problems"] for s in as_json["shapes"]] == [[]] * 5


def test_mistakes_are_one_line_that_says_what_to_do(tiny: Path, tmp_path: Path) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text(f"engine: {tiny}\nprot: 8000\nslots: many\n")
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"keys:\n  - name: one\n    kee: {SECRET}\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for args, says in (
            (("--engine", tiny, "--port", port), "Address already in use; choose another --host or --port"),
            (("--engine", tmp_path / "absent", "--port", "0"), "no bundle at"),
            (("--engine", tmp_path / "absent", "--check"), "no bundle at"),
            (("--config", config), "line 2: prot is not known: did you mean port?; line 3: slots: 'many' is not"),
            (("--config", tmp_path / "absent.yaml"), "cannot read"),
            (("--engine", tiny, "--api-key-file", keys), "line 3: kee is not known: did you mean key?"),
            (("--engine", tiny, "--api-key-file", tmp_path / "absent"), "cannot read"),
            (("--engine", tiny, "--tls-cert", keys), "give both or none"),
        ):
            done = run("serve", *args)
            assert done.returncode == 1, (args, done.stderr)
            errors = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
            assert len(errors) == 1, done.stderr
            assert says in errors[0]
            assert "Traceback" not in done.stderr
            assert SECRET not in done.stderr
