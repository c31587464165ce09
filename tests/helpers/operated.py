"""A whole server life on a thread: loading, keys, limits and draining in front of a scripted target."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from sssd.engines.scripted import Script
from sssd.model import Model
from sssd.server.run import Operation, Run
from sssd.server.settings import Settings


@dataclass
class Operated:
    """A server under test. `failure` is what its run raised, once it is over."""

    url: str
    client: httpx.Client
    run: Run
    thread: threading.Thread
    failure: BaseException | None = None

    def ready(self) -> Operated:
        """Wait until it takes calls."""
        end = time.monotonic() + 20
        while self.client.get("/ready").status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.01)
        return self

    def complete(
        self, prompt: str = "Say:", *, headers: dict[str, str] | None = None, **fields: object
    ) -> httpx.Response:
        """One completion."""
        body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}
        return self.client.post("/v1/completions", json=body, headers=headers or {})

    def over(self, seconds: float = 20) -> bool:
        """Whether the run ends in time."""
        self.thread.join(seconds)
        return not self.thread.is_alive()


def slowed(script: Script, seconds: float) -> Script:
    """The same target, which takes its time."""

    def slow(context):  # type: ignore[no-untyped-def]
        time.sleep(seconds)
        return script(context)

    return slow


@contextmanager
def operated(
    load: Callable[[], Model], operation: Operation = Operation(), settings: Settings = Settings()
) -> Iterator[Operated]:
    """A server from its first moment; whatever still runs is cut off at the end."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    run = Run(load, settings, operation)
    with httpx.Client(base_url=url, timeout=30) as client:

        def live() -> None:
            try:
                asyncio.run(run.until_stopped(listener))
            except BaseException as e:
                made.failure = e

        made = Operated(url, client, run, threading.Thread(target=live, daemon=True))
        made.thread.start()
        try:
            client.get("/health")
            yield made
        finally:
            while made.thread.is_alive() and run.n_signals < 2:
                run.on_signal()
            assert made.over()
