"""The datastore: one file of remembered text that drafts are found in. Owns what a user does with one.

Knows the store_* modules and no tokenizer: token ids come in, and a fingerprint of the vocabulary they belong to.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Self

from sssd.drafting.segments import Segment
from sssd.drafting.store_builder import BuildOptions, Progress, Tally, add_documents, now_ms
from sssd.drafting.store_compact import CompactReport, compact, erase
from sssd.drafting.store_corpus import read_corpus, tokenize
from sssd.drafting.store_documents import Document, TokenSequence, as_document
from sssd.drafting.store_file import (
    State,
    check_tokenizer,
    file_problems,
    open_file,
    read_state,
    segments_of,
)
from sssd.drafting.store_format import NO_REQUEST, Header, check_namespace
from sssd.drafting.store_reports import BuildReport, Match, SearchResult, SegmentReport, StoreReport
from sssd.drafting.store_search import document_tail, matching_positions
from sssd.drafting.store_writer import StoreWriter, WriterLock, beside
from sssd.errors import DatastoreError
from sssd.types import Int32, Source

__all__ = [
    "BuildOptions",
    "BuildReport",
    "CompactReport",
    "Datastore",
    "Match",
    "SearchResult",
    "SegmentReport",
    "StoreReport",
    "add",
    "build",
    "compact",
    "erase",
    "inspect",
    "read_corpus",
    "search",
    "tokenize",
]


class Datastore:
    """A datastore file, open for reading. Many processes may read one file while one writes it."""

    def __init__(self, path: Path, *, tokenizer: str) -> None:
        """Opens in milliseconds and reads no text. Raises DatastoreError, RevisionMismatch or SpecMismatch."""
        self.path = path
        self._tokenizer = tokenizer
        self._file = open_file(path)
        try:
            self._state = self._read()
        except BaseException:
            self._file.close()
            raise

    @property
    def vocab_size(self) -> int:
        """Ids in the file are below it."""
        return self._state.header.vocab_size

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Namespaces that have at least one segment, in the order they came."""
        return _namespaces(self._state)

    def segments(self, namespace: str) -> tuple[Segment, ...]:
        """The namespace's segments, mapped. Raises DatastoreError when there is no such namespace."""
        _check_known(namespace, self.namespaces, self.path)
        return segments_of(self._file, self._state, namespace, source=Source.DATASTORE, path=self.path)

    def refresh(self) -> bool:
        """Look for a newer commit; True when there is one. Segments handed out before stay as they are."""
        file = open_file(self.path)
        before, self._file, old_file = self._state, file, self._file
        try:
            self._state = self._read()
        except BaseException:
            self._file = old_file
            file.close()
            raise
        old_file.close()
        return (self._state.inode, self._state.record.sequence) != (before.inode, before.record.sequence)

    def close(self) -> None:
        """Close the file; mapped segments live on until nobody holds them. Safe to call twice."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> State:
        state = read_state(self._file, self.path)
        check_tokenizer(state.header, self._tokenizer, self.path)
        return state


def build(
    path: Path,
    documents: Iterable[TokenSequence],
    *,
    tokenizer: str,
    vocab_size: int,
    namespace: str = "default",
    options: BuildOptions | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> BuildReport:
    """Make a datastore file of `documents` (token ids, no separators).

    A new file is there, readable, from its first committed segment on, and grows by whole segments: after a kill,
    `add` goes on. With `force` an existing file is replaced when the new one is complete, and untouched until then.
    Raises DatastoreError: file exists, corpus empty, id out of range, disk full, no permission, another writer.
    """
    check_namespace(namespace)
    with WriterLock(path):
        if path.exists() and not force:
            raise DatastoreError(f"{path} exists: add to it with  sssd datastore add,  or replace it with --force")
        target = beside(path) if path.exists() else path
        stream = _non_empty(documents)
        header = Header(tokenizer, vocab_size)
        with StoreWriter.create(target, header) as writer:
            try:
                report = _add(writer, stream, namespace, options or BuildOptions(), progress)
                if target != path:
                    writer.move(path)
            except BaseException:
                if target != path or not writer.state.entries:
                    writer.discard()
                raise
    return replace(report, path=path)


def add(
    path: Path,
    documents: Iterable[TokenSequence],
    *,
    tokenizer: str,
    namespace: str = "default",
    options: BuildOptions | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Append `documents` to a file, segment by segment; readers see each after their next refresh.

    Raises DatastoreError as `build` does, and SpecMismatch for another tokenizer.
    """
    check_namespace(namespace)
    with WriterLock(path), StoreWriter.open(path) as writer:
        check_tokenizer(writer.state.header, tokenizer, path)
        return _add(writer, _non_empty(documents), namespace, options or BuildOptions(), progress)


def inspect(path: Path, *, verify: bool = False) -> StoreReport:
    """What the file holds; with `verify` every byte of it is read and held against its checksum.

    Raises DatastoreError when the file cannot be opened at all; damage below that is listed in the report.
    """
    with open_file(path) as file:
        state = read_state(file, path)
        problems = file_problems(file, state, verify=verify)
    segments = tuple(
        SegmentReport(
            namespace=entry.namespace,
            indexed=entry.indexed,
            n_tokens=entry.n_tokens,
            n_documents=entry.n_documents,
            n_dead=entry.n_dead,
            n_bytes=entry.n_bytes,
            oldest_ms=entry.oldest_ms,
            newest_ms=entry.newest_ms,
        )
        for entry in state.entries
    )
    return StoreReport(
        path=path,
        tokenizer=state.header.tokenizer,
        vocab_size=state.header.vocab_size,
        sequence=state.record.sequence,
        file_bytes=state.record.end,
        segments=segments,
        namespaces=_namespaces(state),
        n_tokens=sum(segment.n_tokens for segment in segments),
        n_documents=sum(segment.n_documents for segment in segments),
        n_dead=sum(segment.n_dead for segment in segments),
        verified=verify,
        problems=tuple(problems),
    )


def search(
    path: Path,
    query: Sequence[int],
    *,
    namespace: str | None = None,
    limit: int = 10,
    continuation: int = 16,
) -> SearchResult:
    """Every place where `query` (at least one id) stands; the first `limit` with `continuation` tokens after each.

    None for `namespace` means all of them. Raises DatastoreError for an empty query, a negative number or an unknown
    namespace.
    """
    wanted = as_document(query)
    if not len(wanted):
        raise DatastoreError("the query has no tokens: give at least one")
    if limit < 0 or continuation < 0:
        raise DatastoreError(f"limit is {limit} and continuation {continuation}: neither may be negative")
    matches: list[Match] = []
    total = 0
    with open_file(path) as file:
        state = read_state(file, path)
        known = _namespaces(state)
        if namespace is not None:
            _check_known(namespace, known, path)
        for name in known if namespace is None else (namespace,):
            for number, segment in enumerate(segments_of(file, state, name, source=Source.DATASTORE, path=path)):
                positions = matching_positions(segment, wanted)
                total += len(positions)
                for position in positions[: limit - len(matches)].tolist():
                    tail = document_tail(segment, position + len(wanted), continuation).copy()
                    matches.append(Match(name, number, position, tail))
    return SearchResult(total, tuple(matches))


def _add(
    writer: StoreWriter,
    stream: Iterator[Int32],
    namespace: str,
    options: BuildOptions,
    progress: Progress | None,
) -> BuildReport:
    started, tally, time_ms = time.perf_counter(), Tally(), now_ms()
    documents = (Document(tokens, NO_REQUEST, time_ms) for tokens in stream)
    add_documents(writer, documents, namespace=namespace, options=options, tally=tally, progress=progress)
    return BuildReport(
        path=writer.path,
        n_documents=tally.n_documents,
        n_tokens=tally.n_tokens,
        n_segments=tally.n_segments,
        n_empty=tally.n_empty,
        n_cut=tally.n_cut,
        seconds=time.perf_counter() - started,
    )


def _non_empty(documents: Iterable[TokenSequence]) -> Iterator[Int32]:
    """The documents as arrays; looks ahead to the first that has tokens. Raises DatastoreError when none has."""
    stream = map(as_document, documents)
    ahead: list[Int32] = []
    for document in stream:
        ahead.append(document)
        if len(document):
            return chain(ahead, stream)
    raise DatastoreError("the corpus holds no tokens: nothing to build a datastore from")


def _namespaces(state: State) -> tuple[str, ...]:
    return tuple(dict.fromkeys(entry.namespace for entry in state.entries))


def _check_known(namespace: str, known: tuple[str, ...], path: Path) -> None:
    if namespace not in known:
        raise DatastoreError(f"{path} has no namespace {namespace!r}: it has {', '.join(known) or 'none yet'}")
