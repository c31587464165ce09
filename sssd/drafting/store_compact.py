"""Rewriting a datastore file: erasing documents of a request, and compacting. Owns which segments are kept as they are.

Knows nothing of corpora.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sssd.drafting.store_builder import BuildOptions, Progress, Tally, add_documents
from sssd.drafting.store_documents import Document, bury, mask_of
from sssd.drafting.store_file import Payload, checked_documents, map_payload
from sssd.drafting.store_format import Documents, Entry
from sssd.drafting.store_writer import StoreWriter, WriterLock, beside
from sssd.errors import DatastoreError
from sssd.types import Bool


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What `compact` did."""

    path: Path
    segments_before: int
    segments_after: int
    bytes_before: int
    bytes_after: int
    n_removed: int  # dead documents that are gone for good
    seconds: float


def erase(path: Path, request_id: int) -> int:
    """Make every document of `request_id` unfindable; how many were erased. `compact` removes their bytes.

    Raises DatastoreError when another process writes the file or the id is negative.
    """
    if request_id < 0:
        raise DatastoreError(f"request id {request_id}: ids are not negative")
    with WriterLock(path), StoreWriter.open(path) as writer:
        entries: list[Entry] = []
        n_erased = 0
        for entry in writer.state.entries:
            if entry.largest_request < request_id:
                entries.append(entry)
                continue
            documents = checked_documents(map_payload(writer.file, entry), path)
            found = bury(entry, documents, documents["request_id"] == request_id)
            n_erased += found.n_dead - entry.n_dead
            entries.append(found)
        if n_erased:
            writer.commit(entries)
        return n_erased


def compact(path: Path, *, options: BuildOptions | None = None, progress: Progress | None = None) -> CompactReport:
    """Merge small segments into as few as the memory bound allows and drop dead documents.

    Segments that are at least half of the largest size and hold nothing dead are copied as they are. The new file is
    written beside and takes the old one's place at the end; until then the old one serves. Needs as much free disk as
    the file's live part. Raises DatastoreError: damaged file, disk full, another writer.
    """
    started, options = time.perf_counter(), options or BuildOptions()
    with WriterLock(path), StoreWriter.open(path) as old:
        before = old.state
        largest = options.segment_tokens(before.header.vocab_size)
        kept = [e for e in before.entries if e.indexed and not len(e.dead) and 2 * e.n_tokens >= largest]
        with StoreWriter.create(beside(path), before.header, sequence=before.record.sequence) as new:
            try:
                new.commit([new.copy_payload(old.file, entry) for entry in kept])
                for namespace in dict.fromkeys(entry.namespace for entry in before.entries):
                    merged = [e for e in before.entries if e.namespace == namespace and e not in kept]
                    stream = _live_documents(old, sorted(merged, key=lambda entry: entry.oldest_ms))
                    add_documents(new, stream, namespace=namespace, options=options, tally=Tally(), progress=progress)
                new.move(path)
            except BaseException:
                new.discard()
                raise
            after = new.state
    return CompactReport(
        path=path,
        segments_before=len(before.entries),
        segments_after=len(after.entries),
        bytes_before=before.record.end,
        bytes_after=after.record.end,
        n_removed=sum(e.n_documents for e in before.entries) - sum(e.n_documents for e in after.entries),
        seconds=time.perf_counter() - started,
    )


def _live_documents(writer: StoreWriter, entries: Iterable[Entry]) -> Iterator[Document]:
    for entry in entries:
        payload = map_payload(writer.file, entry)
        yield from _documents_of(
            payload, checked_documents(payload, writer.path), mask_of(entry.dead, entry.n_documents)
        )


def _documents_of(payload: Payload, documents: Documents, dead: Bool) -> Iterator[Document]:
    bounds = np.append(documents["start"], len(payload.tokens)).tolist()
    for row in np.flatnonzero(~dead).tolist():
        tokens = payload.tokens[bounds[row] : bounds[row + 1] - 1]
        yield Document(tokens, int(documents["request_id"][row]), int(documents["time_ms"][row]))
