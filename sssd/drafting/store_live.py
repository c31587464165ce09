"""The live datastore: finished requests become searchable within a second, stay over restarts, and go in time.

Owns the two threads behind it and the door in front of them; knows nothing of how text is kept (the keeper does).

The keeper's thread looks at what was remembered, sorts each namespace's newest text anew, publishes and persists it.
A second, low-priority thread merges segments and rewrites the file, one job at a time; sorting and copying release
the GIL, and so does every wait for the disk. Drafting never waits: `remember` puts a document into a queue, and
published segments are immutable.
"""

from __future__ import annotations

import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from sssd.drafting.segments import Segment
from sssd.drafting.store_documents import Document
from sssd.drafting.store_file import check_tokenizer
from sssd.drafting.store_format import Header, check_namespace
from sssd.drafting.store_jobs import Merged, Rewritten
from sssd.drafting.store_keeper import Keeper, Publish
from sssd.drafting.store_plan import LiveOptions
from sssd.drafting.store_shelf import Holdings
from sssd.drafting.store_suffix import load_sorter
from sssd.drafting.store_writer import StoreWriter, WriterLock
from sssd.errors import DatastoreError
from sssd.types import Int32

_T = TypeVar("_T")
_PAUSE_AFTER_FAILURE = 10.0  # seconds before a job that failed is tried again
_BACKGROUND_NICENESS = 10


@dataclass(frozen=True, slots=True)
class LiveStats:
    """What a live datastore holds and how it fares."""

    holdings: Holdings
    n_jobs: int  # merges and rewrites done
    n_failures: int
    last_failure: str | None  # what went wrong last in the background: most likely the disk is full


@dataclass(frozen=True, slots=True, eq=False)
class _Remembered:
    namespace: str
    document: Document


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """Something to be done in the keeper's thread, and where its result goes."""

    run: Callable[[], Any]
    result: Future[Any]


class LiveDatastore:
    """Remembers finished requests. Every method may be called from any thread; only `remember` promises not to wait."""

    def __init__(
        self,
        path: Path,
        *,
        tokenizer: str,
        vocab_size: int,
        options: LiveOptions | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the file, or make it. `clock` gives Unix time in seconds.

        Raises DatastoreError (damaged, no permission, another writer), SpecMismatch (another tokenizer),
        RevisionMismatch or MissingExtra.
        """
        load_sorter()
        self.path = path
        self._options = options or LiveOptions()
        self._clock = clock
        self._queue: queue.SimpleQueue[_Remembered | _Call] = queue.SimpleQueue()
        self._segments: dict[str, tuple[Segment, ...]] = {}  # read by any thread, one item set at a time
        self._subscribers: tuple[Publish, ...] = ()
        self._n_jobs = self._n_failures = 0
        self._last_failure: str | None = None
        self._failing: str | None = None  # the last failure, until a look at what is due meets none
        self._job: Future[Merged | Rewritten] | None = None
        self._no_job_before = 0.0  # time.monotonic
        self._open = True
        self._stopped = False  # by the keeper's thread
        with ExitStack() as undo:
            self._lock = undo.enter_context(WriterLock(path))
            header = Header(tokenizer, vocab_size)
            writer = StoreWriter.open(path) if path.exists() else StoreWriter.create(path, header)
            undo.enter_context(writer)
            check_tokenizer(writer.state.header, tokenizer, path)
            self._keeper = Keeper(writer, self._options, self._publish)
            undo.pop_all()
        self._pool = ThreadPoolExecutor(1, "sssd-live-job", _yield_to_others)
        self._thread = threading.Thread(target=self._run, name="sssd-live", daemon=True)
        self._thread.start()

    # ---- any thread -------------------------------------------------------------------------------

    def remember(self, request_id: int, namespace: str, tokens: Int32) -> None:
        """Make a finished request's text (int32 [n], not changed afterwards) searchable within a second. Never waits.

        Text of no tokens is nothing to remember. A request that opts out is simply not given here. `erase` finds the
        text by `request_id`, so number requests on from `stats().holdings.largest_request` after a restart.
        """
        assert self._open
        assert request_id >= 0
        check_namespace(namespace)
        self._queue.put(_Remembered(namespace, Document(tokens, request_id, int(1000 * self._clock()))))

    def segments(self, namespace: str) -> tuple[Segment, ...]:
        """What was published last; none for a namespace in which nothing was remembered. Never waits."""
        return self._segments.get(namespace, ())

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Namespaces in which anything was remembered. Never waits."""
        return tuple(self._segments)

    def subscribe(self, publish: Publish) -> None:
        """Call `publish` with the segments of every namespace now, and again, from the keeper's thread, on changes.

        It is called before `subscribe` returns; afterwards it must not raise and should be quick. A segment that did
        not change is the same object as before.
        """

        def add() -> None:
            for namespace, segments in self._segments.items():
                publish(namespace, segments)
            self._subscribers = (*self._subscribers, publish)

        self._in_keeper(add)

    def erase(self, request_id: int) -> int:
        """Make all text of a request unfindable, durably; how many documents that were.

        Waits for the keeper (not for jobs). The bytes go when their segment is merged or the file compacted.
        Raises DatastoreError when the erasure cannot be written.
        """
        return self._in_keeper(lambda: self._keeper.erase(request_id))

    def flush(self) -> None:
        """Return when everything remembered so far is searchable and in the file; raises DatastoreError if not."""
        self._in_keeper(self._keeper.persist)

    def synchronize(self) -> None:
        """`flush`, then wait until no merge or rewrite is due: for tests and orderly benchmarks."""
        self.flush()
        while job := self._in_keeper(self._next_job_now):
            job.exception()

    def stats(self) -> LiveStats:
        """Counts; waits for the keeper."""
        return self._in_keeper(
            lambda: LiveStats(self._keeper.holdings(), self._n_jobs, self._n_failures, self._last_failure)
        )

    def check(self) -> list[str]:
        """All violations of the store's own rules, and what fails in the background right now; reads everything."""
        return self._in_keeper(lambda: self._keeper.check() + ([self._failing] if self._failing else []))

    def close(self) -> None:
        """Persist what was remembered, stop the threads and let others write. Safe to call twice.

        Raises DatastoreError when the last text could not be saved; everything is released all the same.
        """
        if not self._open:
            return
        try:
            self.flush()
        finally:
            self._open = False
            self._queue.put(_Call(self._stop, Future()))
            self._thread.join()
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- the keeper's thread ----------------------------------------------------------------------

    def _in_keeper(self, run: Callable[[], _T]) -> _T:
        assert self._open
        result: Future[_T] = Future()
        self._queue.put(_Call(run, result))
        return result.result()

    def _run(self) -> None:
        while not self._stopped:
            call = self._gather()
            if call is not None and call.result.set_running_or_notify_cancel():
                try:
                    call.result.set_result(call.run())
                except BaseException as error:
                    call.result.set_exception(error)

    def _gather(self) -> _Call | None:
        """Take what comes in for one interval, or up to a call; then make it searchable, persist it and tidy up."""
        deadline = time.monotonic() + self._options.interval_seconds
        documents: dict[str, list[Document]] = {}
        call: _Call | None = None
        while call is None and (left := deadline - time.monotonic()) > 0:
            try:
                item = self._queue.get(timeout=left)
            except queue.Empty:
                break
            if isinstance(item, _Call):
                call = item
            else:
                documents.setdefault(item.namespace, []).append(item.document)
        failures = self._n_failures
        self._attempt(lambda: self._keeper.remember(documents))
        self._attempt(self._keeper.persist)
        self._attempt(lambda: self._keeper.tidy(int(1000 * self._clock())))
        self._attempt(self._mind_jobs)
        if self._n_failures == failures:
            self._failing = None
        return call

    def _attempt(self, action: Callable[[], None]) -> None:
        """Whatever fails in the background is reported by `stats` and `check`, and tried again at the next look."""
        try:
            action()
        except Exception as error:
            self._n_failures += 1
            self._failing = self._last_failure = f"{type(error).__name__}: {error}"

    def _mind_jobs(self) -> None:
        if self._job is not None and self._job.done():
            job, self._job = self._job, None
            try:
                self._keeper.take_over(job.result())
                self._n_jobs += 1
            except DatastoreError:
                self._no_job_before = time.monotonic() + _PAUSE_AFTER_FAILURE
                raise
        if self._job is None and time.monotonic() >= self._no_job_before:
            due = self._keeper.next_job()
            if due is not None:
                self._job = self._pool.submit(due.run)

    def _next_job_now(self) -> Future[Merged | Rewritten] | None:
        self._mind_jobs()
        return self._job

    def _stop(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._no_job_before = math.inf
        self._attempt(self._mind_jobs)
        self._keeper.close()
        self._stopped = True

    def _publish(self, namespace: str, segments: tuple[Segment, ...]) -> None:
        self._segments[namespace] = segments
        for publish in self._subscribers:
            publish(namespace, segments)


def _yield_to_others() -> None:
    """Lower this thread's priority where the system has one for each thread."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _BACKGROUND_NICENESS)
