"""Reading a datastore file: its committed state, and its payloads as mapped arrays. Owns no write.

Knows the format and nothing of how segments are made, merged or searched.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from sssd.drafting import store_format as form
from sssd.drafting.segments import Segment, no_dead
from sssd.drafting.store_documents import Batch, concatenate, mask_of, select, table_problems, token_ranges
from sssd.drafting.store_suffix import batch_suffixes
from sssd.errors import DatastoreError, SpecMismatch
from sssd.types import Int32, Int64, Source, Uint8

_LEAST_MAPPED = 1 << 20  # bytes; each mapping costs a file descriptor, of which a process has few


@dataclass(frozen=True, slots=True)
class State:
    """What one commit says the file holds."""

    header: form.Header
    record: form.Record
    entries: tuple[form.Entry, ...]
    torn_pages: tuple[int, ...]  # record pages that cannot be read: a commit was cut short, or damage
    inode: tuple[int, int]  # device and inode: a rewritten file is another one


class Payload(NamedTuple):
    """One entry's arrays, views of one mapping that lives as long as any of them."""

    tokens: Int32  # int32 [n]
    suffixes: Int32  # int32 [m]; empty for a journal
    documents: form.Documents  # DOCUMENT [d]


@contextmanager
def explained(path: Path, doing: str) -> Iterator[None]:
    """Turns an OSError into a DatastoreError that names the file and what was being done."""
    try:
        yield
    except OSError as error:
        raise DatastoreError(f"cannot {doing} {path}: {error.strerror or error}") from error


def open_file(path: Path) -> BinaryIO:
    """The file for reading. Raises DatastoreError when it is not there or may not be read."""
    with explained(path, "open"):
        return path.open("rb", buffering=0)


def read_state(file: BinaryIO, path: Path) -> State:
    """The newest whole commit; reads a handful of pages whatever the file's size.

    Raises DatastoreError for a file that is damaged, cut short or none of ours; RevisionMismatch for another version.
    """
    fd = file.fileno()
    with explained(path, "read"):
        header = form.read_header(os.pread(fd, form.PAGE, 0), path)
        records: list[form.Record] = []
        torn: list[int] = []
        for page in (page for pair in form.RECORD_PAGES for page in pair):
            record = form.read_record(os.pread(fd, form.PAGE, page * form.PAGE))
            if record is None:
                torn.append(page)
            else:
                records.append(record)
        if not records:
            raise DatastoreError(f"{path}: every commit record is damaged: restore the file from a copy")
        newest = max(records, key=lambda record: record.sequence)
        about = os.fstat(fd)
        if about.st_size < newest.end:
            raise DatastoreError(
                f"{path} was cut short: it has {about.st_size} bytes of {newest.end}: restore it from a copy"
            )
        block = os.pread(fd, newest.directory_bytes, newest.directory_offset)
    entries = form.read_directory(block, newest, path)
    return State(header, newest, entries, tuple(torn), (about.st_dev, about.st_ino))


def check_tokenizer(header: form.Header, tokenizer: str, path: Path) -> None:
    """Raises SpecMismatch when the file's ids come from another tokenizer."""
    if header.tokenizer != tokenizer:
        raise SpecMismatch(
            f"{path} was built with the tokenizer {header.tokenizer[:16]}, this one is {tokenizer[:16]}: "
            "build a datastore with the tokenizer of the model that is served"
        )


def map_payload(file: BinaryIO, entry: form.Entry) -> Payload:
    """The entry's arrays. Mapped, so that nothing is read until it is touched; a small payload is read at once."""
    whole: Uint8
    if entry.n_bytes < _LEAST_MAPPED:
        whole = np.frombuffer(os.pread(file.fileno(), entry.n_bytes, entry.offset), np.uint8)
    else:
        whole = np.asarray(np.memmap(file, np.uint8, "r", offset=entry.offset, shape=(entry.n_bytes,)))
    suffixes_end = entry.suffixes_at + 4 * entry.n_suffixes
    return Payload(
        whole[: 4 * entry.n_tokens].view(np.int32),
        whole[entry.suffixes_at : suffixes_end].view(np.int32),
        whole[entry.documents_at :].view(form.DOCUMENT),
    )


def checked_documents(payload: Payload, path: Path) -> form.Documents:
    """The document table, in memory. Raises DatastoreError when its starts cannot be."""
    documents = np.array(payload.documents)
    bounds = np.append(documents["start"], len(payload.tokens))
    if bounds[0] != 0 or np.any(np.diff(bounds) < 2):
        raise DatastoreError(f"{path}: a document table is damaged: restore the file from a copy or build it again")
    return documents


def dead_positions(payload: Payload, dead: Int64, path: Path) -> Int64:
    """Token ranges of dead documents: int64 [k, 2]. Reads the table only where something is dead."""
    if not len(dead):
        return no_dead()
    return token_ranges(checked_documents(payload, path), len(payload.tokens), dead)


def live_batch(payload: Payload, dead: Int64, path: Path) -> Batch:
    """The documents of an entry that are not dead."""
    documents = checked_documents(payload, path)
    return select(Batch(payload.tokens, documents), ~mask_of(dead, len(documents)))


def segments_of(file: BinaryIO, state: State, namespace: str, *, source: Source, path: Path) -> tuple[Segment, ...]:
    """The namespace's segments: the indexed ones mapped, all journals sorted into one in memory."""
    segments: list[Segment] = []
    journals: list[Batch] = []
    for entry in state.entries:
        if entry.namespace != namespace:
            continue
        payload = map_payload(file, entry)
        if entry.indexed:
            dead = dead_positions(payload, entry.dead, path)
            segments.append(Segment(payload.tokens, payload.suffixes, dead, source))
        else:
            journals.append(live_batch(payload, entry.dead, path))
    memory = memory_segment(concatenate(journals), vocab_size=state.header.vocab_size, source=source)
    return (*segments, *memory)


def memory_segment(batch: Batch, *, vocab_size: int, source: Source) -> tuple[Segment, ...]:
    """One segment of `batch`, sorted now; none for no documents."""
    if not len(batch.tokens):
        return ()
    return (Segment(batch.tokens, batch_suffixes(batch, vocab_size=vocab_size).copy(), no_dead(), source),)


def checksum(array: np.ndarray) -> int:
    """CRC-32 of an array's bytes."""
    return zlib.crc32(np.ascontiguousarray(array).data)


def file_problems(file: BinaryIO, state: State, *, verify: bool) -> list[str]:
    """Damage that the file survives; with `verify` every payload is read and held against its checksums and table."""
    found = [f"page {page}: a commit record is torn or damaged; another copy is used" for page in state.torn_pages]
    for entry in state.entries if verify else ():
        payload = map_payload(file, entry)
        stored = (entry.checksums.tokens, entry.checksums.suffixes, entry.checksums.documents)
        for name, array, crc in zip(Payload._fields, payload, stored, strict=True):
            if checksum(array) != crc:
                found.append(f"segment at byte {entry.offset}: its {name} are damaged")
        found += [f"segment at byte {entry.offset}: {p}" for p in table_problems(payload.documents, payload.tokens)]
    return found
