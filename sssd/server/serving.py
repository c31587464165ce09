"""The bridge between asyncio and the loop's thread: jobs in, pieces of answers out. Owns the worker.

Knows no HTTP and no JSON. The loop's thread only appends to a call's mailbox, so a reader that is slow or gone keeps
nobody waiting; text is made on the reader's side.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from sssd.answer import Completion, Piece, Stats
from sssd.model import Job, Model
from sssd.runtime.request import Request
from sssd.runtime.worker import Worker
from sssd.server.meter import Cancelled, Meter, RequestMeter
from sssd.text import Tokenizer
from sssd.types import FinishReason, StepOutput


class Part(NamedTuple):
    """A piece of one of a call's answers."""

    choice: int  # the job it answers
    piece: Piece


class Serving:
    """A model that answers calls from coroutines, until `close`."""

    def __init__(self, model: Model, meter: Meter | None = None) -> None:
        """`meter` counts what the calls take, on the event loop's thread."""
        self.model = model
        self.meter = meter or Meter()
        self.worker = Worker(model.loop)

    async def call(self, jobs: Sequence[Job]) -> Call:
        """Queue all jobs, or none. Raises RequestError, QueueFull, or EngineError when the server shuts down."""
        make = self.model.request
        if any(job.constraint for job in jobs):  # compiling one may take long: not on this thread
            requests = await asyncio.to_thread(lambda: [make(job) for job in jobs])
        else:
            requests = [make(job) for job in jobs]
        call = Call(self, requests)
        try:
            await call.start()
        except BaseException:
            call.close()
            raise
        return call

    def close(self) -> None:
        """Stop the loop after the step that runs; answers that have not ended get an error. Safe to call twice."""
        self.worker.close()
        self.model.close()


class Call:
    """The answers of one HTTP call, read by one coroutine: `async for` its parts, then `close` it whatever happened."""

    def __init__(self, serving: Serving, requests: Sequence[Request]) -> None:
        self._serving = serving
        self._requests = requests
        self._answers = [serving.model.answer(r) for r in self._requests]
        self._places = {r.id: i for i, r in enumerate(self._requests)}
        self._mail = _Mailbox()
        self._arrived = serving.meter.clock()
        self._meters: list[RequestMeter] = []  # one a request, when all have been taken

    @property
    def max_draft_tokens(self) -> int:
        """Most draft tokens that any of the requests may carry in a step."""
        return max(r.max_draft_tokens for r in self._requests)

    @property
    def tokenizer(self) -> Tokenizer:
        """What the answers' text is made with."""
        return self._serving.model.tokenizer

    def stats(self) -> list[Stats]:
        """What each answer has taken so far."""
        return [a.stats() for a in self._answers]

    async def start(self) -> None:
        """Queue the requests. Raises what the loop refuses them with."""
        worker = self._serving.worker
        taken = [asyncio.wrap_future(worker.submit(r, self._mail.put)) for r in self._requests]
        refusals = [r for r in await asyncio.gather(*taken, return_exceptions=True) if r is not None]
        if refusals:
            raise refusals[0]
        self._meters = [self._serving.meter.arrived(self._arrived) for _ in self._requests]

    async def parts(self) -> AsyncIterator[Part | None]:
        """Pieces of all answers as they come; the last of each carries its completion. None is a long pause."""
        running = len(self._answers)
        while running:
            outputs = await self._mail.take()
            if not outputs:
                yield None
            for out in outputs:
                index = self._places[out.request_id]
                answer = self._answers[index]
                if answer.completion is not None:
                    continue  # it ended at a stop string; this step was on its way already
                self._take(index, out)
                running -= answer.completion is not None
                while answer.pieces:
                    yield Part(index, answer.pieces.popleft())

    def _take(self, index: int, out: StepOutput) -> None:
        answer = self._answers[index]
        answer.take(out)
        self._meters[index].step(out, len(answer.pieces[-1].token_ids) if out.tokens else 0)
        if answer.completion is not None:
            self._count_end(index, answer.completion.finish_reason)
        if answer.completion is not None and out.finish is None:
            self._serving.worker.cancel(out.request_id)

    async def completions(self) -> list[Completion]:
        """All answers, when all have ended."""
        async for _ in self.parts():
            pass
        return [a.completion for a in self._answers if a.completion is not None]

    def close(self) -> None:
        """Cancel what has not ended."""
        for index, answer in enumerate(self._answers):
            if answer.completion is None:
                self._serving.worker.cancel(answer.request_id)
                if self._meters:
                    self._count_end(index, "cancelled")

    def _count_end(self, index: int, finish: FinishReason | Cancelled) -> None:
        request = self._requests[index]
        self._meters[index].ended(
            finish,
            prompt_tokens=request.prompt_len,
            cached_tokens=request.n_reused,
            queue_seconds=None if request.admitted is None else request.admitted - self._arrived,
        )


class _Mailbox:
    """Step outputs from the loop's thread to one coroutine; one wake-up however many there are."""

    PAUSE = 15.0  # seconds after which the reader is told that nothing has come

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[StepOutput] = deque()
        self._full = asyncio.Event()
        self._woken = False  # a wake-up is on its way, or the reader has not come round yet

    def put(self, out: StepOutput) -> None:
        """Called on the loop's thread; never waits."""
        self._items.append(out)
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._full.set)

    async def take(self) -> list[StepOutput]:
        """Waits, then all that has come since; none after a pause."""
        pause = self._loop.call_later(self.PAUSE, self._full.set)
        await self._full.wait()
        pause.cancel()
        self._full.clear()
        self._woken = False  # before the items are taken: what comes from here on wakes again
        taken = []
        while self._items:
            taken.append(self._items.popleft())
        return taken
