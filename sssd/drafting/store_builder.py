"""From a stream of documents to committed segments, within a memory bound and on all cores. Owns how a corpus is cut.

Knows nothing of where documents come from, nor of the bytes of the file.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from sssd.drafting.segments import SEPARATOR
from sssd.drafting.store_documents import Batch, Document, cut
from sssd.drafting.store_format import DOCUMENT, Entry
from sssd.drafting.store_suffix import LARGEST_SEGMENT, batch_suffixes, scratch_bytes
from sssd.drafting.store_writer import StoreWriter, payload_bytes
from sssd.errors import DatastoreError
from sssd.types import Int32

Progress = Callable[[int, int], None]  # (tokens committed, tokens read so far)

LEAST_MEMORY = 4 << 20
_REPORT_EVERY = 1 << 20  # tokens read between two calls of progress


@dataclass(frozen=True)
class BuildOptions:
    """How much of the machine a build may use; the command line's defaults are these."""

    memory: int = 1 << 30  # bytes of working memory; decides how large a segment gets
    workers: int | None = None  # segments sorted at once; None = one for each usable core, at most 8

    def segment_tokens(self, vocab_size: int) -> int:
        """Largest segment: while one is filled, each worker sorts one. Raises DatastoreError for too little memory."""
        if self.memory < LEAST_MEMORY:
            raise DatastoreError(f"--memory is {self.memory} bytes: give at least {LEAST_MEMORY}")
        per_token = 4 + self.n_workers * (4 + scratch_bytes(vocab_size))
        return min(LARGEST_SEGMENT, self.memory // per_token)

    @property
    def n_workers(self) -> int:
        """Workers in effect. Raises DatastoreError for less than one."""
        if self.workers is None:
            usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            return min(8, usable)
        if self.workers < 1:
            raise DatastoreError(f"--workers is {self.workers}: give at least 1")
        return self.workers


@dataclass(slots=True)
class Tally:
    """What a build has done so far; filled by `add_documents`."""

    n_documents: int = 0  # stored, pieces of cut ones counted each
    n_tokens: int = 0  # stored, without separators
    n_read: int = 0  # tokens taken from the stream
    n_segments: int = 0
    n_empty: int = 0  # documents of no tokens: nothing to store
    n_cut: int = 0  # documents longer than a segment, stored in pieces


def add_documents(
    writer: StoreWriter,
    documents: Iterable[Document],
    *,
    namespace: str,
    options: BuildOptions,
    tally: Tally,
    progress: Progress | None = None,
) -> None:
    """Sort and commit `documents`, one segment after the other, each as soon as it is written.

    Peak memory is `options.memory`. Raises DatastoreError (ids out of range, disk full); segments committed before
    stay, bytes written for later ones are given back.
    """
    vocab_size = writer.state.header.vocab_size
    running: deque[Future[Entry]] = deque()

    def commit_oldest() -> None:
        entry = running.popleft().result()
        writer.commit((*writer.state.entries, entry))
        tally.n_segments += 1
        tally.n_documents += entry.n_documents
        tally.n_tokens += entry.n_tokens - entry.n_documents
        if progress:
            progress(tally.n_tokens, tally.n_read)

    def sort_and_write(batch: Batch, offset: int) -> Entry:
        return writer.write_payload(offset, namespace, batch, batch_suffixes(batch, vocab_size=vocab_size))

    with writer.transaction(), _pool(options.n_workers) as pool:
        for batch in _batches(documents, options.segment_tokens(vocab_size), tally, progress):
            while len(running) >= options.n_workers:
                commit_oldest()
            n_bytes = payload_bytes(len(batch.tokens), len(batch.documents), indexed=True)
            running.append(pool.submit(sort_and_write, batch, writer.reserve(n_bytes)))
        while running:
            commit_oldest()


@contextmanager
def _pool(n_workers: int) -> Iterator[ThreadPoolExecutor]:
    """Worker threads; when an exception leaves, tasks that have not begun are dropped."""
    pool = ThreadPoolExecutor(n_workers, "sssd-build")
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _batches(documents: Iterable[Document], capacity: int, tally: Tally, progress: Progress | None) -> Iterator[Batch]:
    """Documents packed into batches of at most `capacity` tokens.

    A document that does not fit begins the next batch; no match crosses the cuts of one longer than a batch.
    """
    filling = _Filling(capacity)
    reported = 0
    for document in documents:
        tally.n_read += len(document.tokens)
        tally.n_empty += len(document.tokens) == 0
        tally.n_cut += len(document.tokens) >= capacity
        for piece in cut(document, capacity):
            if len(piece.tokens) + 1 > filling.room:
                yield filling.batch()
                filling = _Filling(capacity)
            filling.add(piece)
        if progress and tally.n_read - reported >= _REPORT_EVERY:
            reported = tally.n_read
            progress(tally.n_tokens, tally.n_read)
    if filling.used:
        yield filling.batch()


class _Filling:
    """A batch that is being filled, in place."""

    def __init__(self, capacity: int) -> None:
        self._tokens: Int32 = np.empty(capacity, np.int32)
        self._table: list[tuple[int, int, int]] = []
        self.used = 0

    @property
    def room(self) -> int:
        return len(self._tokens) - self.used

    def add(self, document: Document) -> None:
        stop = self.used + len(document.tokens)
        self._table.append((self.used, document.request_id, document.time_ms))
        self._tokens[self.used : stop] = document.tokens
        self._tokens[stop] = SEPARATOR
        self.used = stop + 1

    def batch(self) -> Batch:
        return Batch(self._tokens[: self.used], np.array(self._table, DOCUMENT))


def now_ms() -> int:
    """Unix time in milliseconds."""
    return int(time.time() * 1000)
