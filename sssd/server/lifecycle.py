"""Where the server is in its life, and how many calls run. Owns when it counts as drained; knows no HTTP and no model.

loading -> ready -> draining
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Phase = Literal["loading", "ready", "draining"]


class Lifecycle:
    """Used on the event loop's thread."""

    def __init__(self) -> None:
        self.phase: Phase = "loading"
        self.n_calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def ready(self) -> None:
        """Calls may come, unless the end has begun already."""
        if self.phase == "loading":
            self.phase = "ready"

    def drain(self) -> None:
        """No further calls; those that run go on."""
        self.phase = "draining"

    @contextmanager
    def call(self) -> Iterator[None]:
        """Counts a call while it runs."""
        self.n_calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.n_calls -= 1
            if not self.n_calls:
                self._idle.set()

    async def idle(self, limit: float) -> bool:
        """Wait until no call runs, for `limit` seconds at most; whether it came to that."""
        try:
            await asyncio.wait_for(self._idle.wait(), limit)
        except TimeoutError:
            return False
        return True
