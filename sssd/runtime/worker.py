"""The thread that owns a loop. Owns the crossing: requests and cancellations in, step outputs out, nothing shared.

Knows no text. Readers take from queues of their own: one that is slow or gone keeps nobody waiting, and its queue holds
no more than its own answer. Between steps the thread takes what has come in; while nothing runs it sleeps.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from sssd.errors import EngineError, SssdError
from sssd.runtime.loop import Loop
from sssd.runtime.request import Request
from sssd.types import StepOutput

_log = logging.getLogger("sssd.worker")
Deliver = Callable[[StepOutput], None]  # called on the worker's thread; must not wait


@dataclass(frozen=True, slots=True)
class _Add:
    request: Request
    deliver: Deliver
    taken: Future[None]


@dataclass(frozen=True, slots=True)
class _Cancel:
    request_id: int


class _Stop:
    """No more work is taken; what runs is dropped."""


class Worker:
    """Runs `loop` on a thread of its own from construction to `close`."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._inbox: queue.SimpleQueue[_Add | _Cancel | _Stop] = queue.SimpleQueue()
        self._readers: dict[int, Deliver] = {}
        self._closed = False
        self._gate = threading.Lock()  # nothing enters the inbox after it has been emptied for good
        self._thread = threading.Thread(target=self._work, name="sssd-loop", daemon=True)
        self._thread.start()

    def submit(self, request: Request, deliver: Deliver) -> Future[None]:
        """Queue a request; its outputs go to `deliver`, the last one with a finish. Does not wait.

        The future is done when the loop has taken the request, after one step at most, and holds RequestError,
        QueueFull or EngineError when it has not; cancelled before that, the request is not taken.
        """
        taken: Future[None] = Future()
        with self._gate:
            if not self._closed:
                self._inbox.put(_Add(request, deliver, taken))
                return taken
        taken.set_exception(EngineError("this worker is closed"))
        return taken

    def cancel(self, request_id: int) -> None:
        """Drop a request as soon as the step that runs has ended; nothing is delivered for it after that."""
        self._inbox.put(_Cancel(request_id))

    @property
    def alive(self) -> bool:
        """Whether the thread runs: requests that are given will be answered."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop the thread after the step that runs; requests that have not ended get an error. Safe to call twice."""
        self._inbox.put(_Stop())
        self._thread.join()

    def _work(self) -> None:
        why = "the server is shutting down"
        try:
            while self._take_in():
                for out in self._loop.step() if len(self._loop.scheduler) else ():
                    self._deliver(out)
        except Exception as e:  # a fault of ours: nobody may be left waiting for it
            _log.exception("the loop's thread failed")
            why = f"the loop failed: {e!r}"
        with self._gate:
            self._closed = True
        self._turn_away(why)

    def _turn_away(self, why: str) -> None:
        """End what runs and refuse what still comes in."""
        for request_id in list(self._readers):
            self._deliver(StepOutput(request_id, (), finish="error", error=why))
        while not self._inbox.empty():
            message = self._inbox.get()
            if isinstance(message, _Add) and message.taken.set_running_or_notify_cancel():
                message.taken.set_exception(EngineError("this worker is closed"))

    def _take_in(self) -> bool:
        """Everything that has come in; waits for something while nothing runs. False when it is time to stop."""
        wait = not len(self._loop.scheduler)
        while wait or not self._inbox.empty():
            message = self._inbox.get()
            wait = False
            if isinstance(message, _Stop):
                return False
            if isinstance(message, _Cancel):
                self._readers.pop(message.request_id, None)
                self._loop.cancel(message.request_id)
            elif message.taken.set_running_or_notify_cancel():
                self._add(message)
        return True

    def _add(self, message: _Add) -> None:
        try:
            self._loop.add(message.request)
        except SssdError as e:
            message.taken.set_exception(e)
        else:
            self._readers[message.request.id] = message.deliver
            message.taken.set_result(None)

    def _deliver(self, out: StepOutput) -> None:
        deliver = self._readers.get(out.request_id)
        if out.finish:
            self._readers.pop(out.request_id, None)
        if deliver is None:
            return
        try:
            deliver(out)
        except Exception:  # one reader's fault is not the others'
            _log.exception("a reader failed; its request is cancelled")
            self._readers.pop(out.request_id, None)
            self._loop.cancel(out.request_id)
