"""From a listening socket to an exit: load, serve, drain. Owns the order of things and what signals mean.

    first SIGTERM or SIGINT    no more calls; those that run end, or are cut off after the drain's limit; exit 0
    second one                 those that run are cut off now
    third one                  the process ends where it stands

Knows no endpoint. The port answers from the start: /health at once, /ready when the model is loaded.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from socket import socket
from types import FrameType

import uvicorn
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from sssd.drafting.remembering import Remembering
from sssd.errors import ConfigError
from sssd.model import Model
from sssd.server.access import Access
from sssd.server.app import make_app
from sssd.server.front import Front
from sssd.server.gate import Gate
from sssd.server.gauges import DatastoreGauges, Gauges, datastore_gauges, loop_gauges
from sssd.server.keys import KeyRing
from sssd.server.lifecycle import Lifecycle
from sssd.server.meter import Meter
from sssd.server.serving import Serving
from sssd.server.settings import Settings

_log = logging.getLogger("sssd.server")
_LAST_WORDS = 5  # seconds for responses that are on their way when everything else has ended


@dataclass(frozen=True, slots=True)
class Operation:
    """What an operator chooses about the process."""

    drain_seconds: float = 30.0  # how long running calls may go on after the first signal
    certificate: Path | None = None  # PEM; with `private_key`, HTTPS instead of HTTP
    private_key: Path | None = None
    origins: tuple[str, ...] = ()  # web pages of these origins may call the API; "*" = of any
    keys: KeyRing | None = None  # None = everybody may call
    datastore: Path | None = None  # what the model drafts from, to be reported

    def __post_init__(self) -> None:
        if not self.drain_seconds >= 0:
            raise ConfigError(f"drain_seconds is {self.drain_seconds}: allowed is 0 or more")
        if (self.certificate is None) != (self.private_key is None):
            raise ConfigError("a certificate needs its private key, and the key its certificate: give both or none")
        if self.certificate is not None and self.private_key is not None:
            _check_certificate(self.certificate, self.private_key)


def _check_certificate(certificate: Path, private_key: Path) -> None:
    for path in (certificate, private_key):
        try:
            path.open("rb").close()
        except OSError as e:
            raise ConfigError(f"cannot read {path}: {e.strerror}") from None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, private_key, password=lambda: b"")
    except (ssl.SSLError, ValueError) as e:
        reason = getattr(e, "reason", None) or e
        raise ConfigError(
            f"{certificate} and {private_key} are no certificate with its unencrypted private key ({reason}); "
            "give PEM files"
        ) from None


def run(load: Callable[[], Model], listener: socket, settings: Settings, operation: Operation) -> None:
    """Serve until a signal. Raises what `load` raises, when the port is closed again."""
    asyncio.run(Run(load, settings, operation).until_stopped(listener))


class _Server(uvicorn.Server):
    """Leaves it to the run what a signal means."""

    def __init__(self, config: uvicorn.Config, on_signal: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_signal = on_signal

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by Python's signal handling on the main thread, between two instructions of the event loop."""
        self._on_signal()


class Run:
    """One life of a server."""

    def __init__(self, load: Callable[[], Model], settings: Settings, operation: Operation) -> None:
        self._load = load
        self._settings = settings
        self._operation = operation
        self._meter = Meter()
        self.n_signals = 0  # that came so far
        self._datastore: DatastoreGauges | None = None
        self._serving: Serving | None = None

    async def until_stopped(self, listener: socket) -> None:
        """Serve on `listener` until signalled. Raises what loading raises, when the port is closed again."""
        self._loop = asyncio.get_running_loop()
        self._lifecycle = Lifecycle()
        self._stopped = asyncio.Event()  # by a second signal
        self._signalled = asyncio.Event()
        self._front = Front(self._lifecycle, self._meter, self._gauges)
        server = _Server(self._uvicorn(), self.on_signal)
        http = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await self._serve(http)
        finally:
            if self._serving is not None:
                await asyncio.to_thread(self._serving.close)
            server.should_exit = True
            await http
        _log.info("stopped")

    async def _serve(self, http: asyncio.Task[None]) -> None:
        loading = asyncio.create_task(asyncio.to_thread(self._load))
        signalled = asyncio.create_task(self._signalled.wait())
        await asyncio.wait({loading, http, signalled}, return_when=asyncio.FIRST_COMPLETED)
        model = await loading  # nothing can interrupt it but a third signal
        self._serving = Serving(model, self._meter)
        if http.done():
            return
        if self._operation.datastore is not None:
            self._datastore = datastore_gauges(self._operation.datastore, model.tokenizer.fingerprint())
        self._front.api = make_app(self._serving, self._settings)
        self._front.loop_lives = lambda: self._serving is None or self._serving.worker.alive
        self._lifecycle.ready()
        if self._lifecycle.phase == "ready":
            _log.info("ready", extra={"fields": {"model": model.spec.name}})
        await asyncio.wait({signalled, http}, return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        await self._drain()

    async def _drain(self) -> None:
        idle = asyncio.create_task(self._lifecycle.idle(self._operation.drain_seconds))
        stopped = asyncio.create_task(self._stopped.wait())
        await asyncio.wait({idle, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not idle.done() or not idle.result():
            n = self._lifecycle.n_calls
            _log.warning("cutting off calls that still run", extra={"fields": {"calls": n}})
        idle.cancel()

    def on_signal(self) -> None:
        """What a SIGTERM does; may be called from any thread once the run has begun."""
        self.n_signals += 1
        if self.n_signals == 1:
            self._loop.call_soon_threadsafe(self._begin_drain)
        elif self.n_signals == 2:
            self._loop.call_soon_threadsafe(self._stopped.set)
        else:
            os._exit(128 + signal.SIGTERM)

    def _begin_drain(self) -> None:
        self._lifecycle.drain()
        self._signalled.set()
        fields = {"calls": self._lifecycle.n_calls, "limit_s": self._operation.drain_seconds}
        _log.info("draining", extra={"fields": fields})

    def _uvicorn(self) -> uvicorn.Config:
        o = self._operation
        return uvicorn.Config(
            self._layers(),
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_LAST_WORDS,
            ssl_certfile=o.certificate,
            ssl_keyfile=o.private_key,
        )

    def _layers(self) -> ASGIApp:
        app: ASGIApp = Gate(self._front, self._lifecycle, self._operation.keys)
        if self._operation.origins:
            app = CORSMiddleware(
                app,
                allow_origins=list(self._operation.origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "retry-after"],
            )
        return Access(app, self._meter)

    def _gauges(self) -> Gauges:
        serving, store = self._serving, self._datastore
        name = self._settings.names[0] if self._settings.names else serving.model.spec.name if serving else ""
        if serving is None:
            return Gauges(name, False, None)
        drafter = serving.model.drafter
        return Gauges(
            name,
            self._lifecycle.phase == "ready",
            loop_gauges(serving.model.loop),
            store and replace(store, present=store.path.exists()),
            drafter.live.stats() if isinstance(drafter, Remembering) else None,
        )
