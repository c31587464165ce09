"""The datastore file, byte by byte. Owns its layout, its checksums and what counts as damage.

Knows neither how files are written nor what segments are searched for.

    page 0        header: magic, version, vocabulary size, tokenizer fingerprint
    pages 1 - 4   commit records, two copies each of an even and an odd one; the highest sound sequence number rules
    page 5 -      payloads and directories, in the order they were written, each from a page boundary

A payload is tokens int32, suffixes int32 and the document table, each from a 64-byte boundary. A commit appends
payloads and a new directory, makes them durable, and only then writes the older record, one copy after the other:
whatever moment a writer is killed at, one whole record points at a whole directory. Nothing that a record ever
pointed at is overwritten. Numbers are little-endian. The last four bytes of a page are its CRC-32, in every version.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sssd.errors import DatastoreError, RevisionMismatch
from sssd.types import Int64

VERSION = 1
PAGE = 4096
RECORD_PAGES = ((1, 2), (3, 4))  # the copies of the record with an even sequence number, of the one with an odd
DATA_START = 5 * PAGE
NO_REQUEST = -1  # stored request id of a document that no request made

DOCUMENT = np.dtype([("start", "<i8"), ("request_id", "<i8"), ("time_ms", "<i8")])
Documents = npt.NDArray[np.void]  # DOCUMENT [d]

_ENTRY = np.dtype(
    [
        ("namespace", "<u4"),
        ("indexed", "<u4"),
        ("offset", "<u8"),
        ("n_tokens", "<u8"),
        ("n_documents", "<u8"),
        ("crc_tokens", "<u4"),
        ("crc_suffixes", "<u4"),
        ("crc_documents", "<u4"),
        ("n_dead", "<u4"),
        ("dead_tokens", "<u8"),
        ("largest_request", "<i8"),
        ("oldest_ms", "<i8"),
        ("newest_ms", "<i8"),
    ]
)
_HEADER = struct.Struct("<8sIIH")
_RECORD = struct.Struct("<8sQQQQ")
_DIRECTORY = struct.Struct("<8sII")
_MAGIC = b"SSSDSTOR"
_RECORD_MAGIC = b"COMMIT01"
_DIRECTORY_MAGIC = b"SEGMENTS"
_MOST_NAME_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Header:
    """What never changes in a file's life."""

    tokenizer: str  # fingerprint of the vocabulary that made the ids
    vocab_size: int  # ids are below it


@dataclass(frozen=True, slots=True)
class Record:
    """One commit: where the directory stands and how much of the file is meant."""

    sequence: int  # grows by one a commit
    directory_offset: int
    directory_bytes: int
    end: int  # bytes of the file that are committed


@dataclass(frozen=True, slots=True)
class Checksums:
    """CRC-32 of each part of a payload."""

    tokens: int
    suffixes: int  # of no bytes, where there are no suffixes
    documents: int


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One segment in the file. An entry without suffixes is a journal: few tokens, sorted by whoever opens the file."""

    namespace: str
    indexed: bool  # the suffixes are stored
    offset: int  # bytes, a multiple of PAGE
    n_tokens: int  # separators included
    n_documents: int
    checksums: Checksums
    largest_request: int  # NO_REQUEST when no document has one
    oldest_ms: int  # Unix time of the oldest document that is not dead, milliseconds
    newest_ms: int
    dead: Int64 = field(default_factory=lambda: np.zeros((0, 2), np.int64))  # int64 [k, 2] ranges of dead documents
    dead_tokens: int = 0  # tokens of dead documents, separators included

    @property
    def n_dead(self) -> int:
        """Dead documents."""
        return int(np.sum(self.dead[:, 1] - self.dead[:, 0]))

    @property
    def live_tokens(self) -> int:
        """Tokens of documents that are not dead, separators included."""
        return self.n_tokens - self.dead_tokens

    @property
    def n_suffixes(self) -> int:
        """Stored suffixes: one for every position that holds a token."""
        return self.n_tokens - self.n_documents if self.indexed else 0

    @property
    def suffixes_at(self) -> int:
        """Bytes from the payload's start to its suffixes."""
        return aligned(4 * self.n_tokens, 64)

    @property
    def documents_at(self) -> int:
        """Bytes from the payload's start to its document table."""
        return self.suffixes_at + aligned(4 * self.n_suffixes, 64)

    @property
    def n_bytes(self) -> int:
        """Bytes of the payload."""
        return self.documents_at + DOCUMENT.itemsize * self.n_documents


def aligned(n: int, boundary: int) -> int:
    """The least multiple of `boundary` that is not below n."""
    return -(-n // boundary) * boundary


# ---- pages ----------------------------------------------------------------------------------------


def header_page(header: Header) -> bytes:
    """Page 0. Raises DatastoreError for a fingerprint or vocabulary that does not fit it."""
    name = header.tokenizer.encode()
    if not 0 < len(name) <= _MOST_NAME_BYTES:
        raise DatastoreError(f"a tokenizer fingerprint has 1 to {_MOST_NAME_BYTES} bytes, this one {len(name)}")
    if not 0 < header.vocab_size < 1 << 24:
        raise DatastoreError(f"a datastore takes vocabularies of 1 to {(1 << 24) - 1} ids, not {header.vocab_size}")
    return _page(_HEADER.pack(_MAGIC, VERSION, header.vocab_size, len(name)) + name)


def read_header(page: bytes, path: Path) -> Header:
    """The header in `page`. Raises DatastoreError when it is none or damaged, RevisionMismatch for another version."""
    if page[: len(_MAGIC)] != _MAGIC:
        raise DatastoreError(f"{path} is not a datastore file: build one with  sssd datastore build")
    if not _page_is_sound(page):
        raise DatastoreError(f"{path}: the header is damaged: restore the file from a copy or build it again")
    _, version, vocab_size, n_name = _HEADER.unpack_from(page)
    if version != VERSION:
        raise RevisionMismatch(
            f"{path} has datastore version {version}, this sssd reads version {VERSION}: build the file again with it"
        )
    return Header(page[_HEADER.size : _HEADER.size + n_name].decode(), vocab_size)


def record_page(record: Record) -> bytes:
    """One copy of a commit record."""
    return _page(
        _RECORD.pack(_RECORD_MAGIC, record.sequence, record.directory_offset, record.directory_bytes, record.end)
    )


def read_record(page: bytes) -> Record | None:
    """The record in `page`, or None when it was torn or damaged."""
    if not _page_is_sound(page) or page[: len(_RECORD_MAGIC)] != _RECORD_MAGIC:
        return None
    return Record(*_RECORD.unpack_from(page)[1:])


def _page(content: bytes) -> bytes:
    body = content.ljust(PAGE - 4, b"\0")
    assert len(body) == PAGE - 4
    return body + struct.pack("<I", zlib.crc32(body))


def _page_is_sound(page: bytes) -> bool:
    return len(page) == PAGE and bool(struct.unpack_from("<I", page, PAGE - 4)[0] == zlib.crc32(page[:-4]))


# ---- directory ------------------------------------------------------------------------------------


def check_namespace(namespace: str) -> None:
    """Raises DatastoreError for a name that a directory cannot hold."""
    if not 0 < len(namespace.encode()) <= _MOST_NAME_BYTES:
        raise DatastoreError(f"a namespace's name has 1 to {_MOST_NAME_BYTES} bytes, not {len(namespace.encode())}")


def directory_block(entries: tuple[Entry, ...]) -> bytes:
    """The directory of `entries`, checksum included."""
    names = {name: i for i, name in enumerate(dict.fromkeys(entry.namespace for entry in entries))}
    parts = [_DIRECTORY.pack(_DIRECTORY_MAGIC, len(names), len(entries))]
    parts += [struct.pack("<H", len(name.encode())) + name.encode() for name in names]
    rows = np.zeros(len(entries), _ENTRY)
    for row, entry in zip(rows, entries, strict=True):
        sums = entry.checksums
        row["namespace"], row["indexed"], row["offset"] = names[entry.namespace], entry.indexed, entry.offset
        row["n_tokens"], row["n_documents"] = entry.n_tokens, entry.n_documents
        row["crc_tokens"], row["crc_suffixes"], row["crc_documents"] = sums.tokens, sums.suffixes, sums.documents
        row["n_dead"], row["dead_tokens"] = len(entry.dead), entry.dead_tokens
        row["largest_request"], row["oldest_ms"], row["newest_ms"] = (
            entry.largest_request,
            entry.oldest_ms,
            entry.newest_ms,
        )
    parts += [rows.tobytes(), *(entry.dead.astype("<i8").tobytes() for entry in entries)]
    body = b"".join(parts)
    return body + struct.pack("<I", zlib.crc32(body))


def read_directory(block: bytes, record: Record, path: Path) -> tuple[Entry, ...]:
    """The entries in `block`. Raises DatastoreError when it is damaged or says what cannot be."""
    if len(block) < 4 or struct.unpack_from("<I", block, len(block) - 4)[0] != zlib.crc32(block[:-4]):
        raise DatastoreError(f"{path}: the directory is damaged: restore the file from a copy or build it again")
    _, n_names, n_entries = _DIRECTORY.unpack_from(block)
    at = _DIRECTORY.size
    names: list[str] = []
    for _ in range(n_names):
        (n_name,) = struct.unpack_from("<H", block, at)
        names.append(block[at + 2 : at + 2 + n_name].decode())
        at += 2 + n_name
    rows = np.frombuffer(block, _ENTRY, n_entries, at)
    at += rows.nbytes
    entries: list[Entry] = []
    for row in rows:
        n_dead = int(row["n_dead"])
        dead = np.frombuffer(block, "<i8", 2 * n_dead, at).reshape(n_dead, 2).astype(np.int64)
        at += dead.nbytes
        entries.append(_entry(row, names, dead))
    for entry in entries:
        if entry.offset % PAGE or entry.offset < DATA_START or entry.offset + entry.n_bytes > record.end:
            raise DatastoreError(f"{path}: a segment at byte {entry.offset} is not inside the file: build it again")
    return tuple(entries)


def _entry(row: Any, names: list[str], dead: Int64) -> Entry:
    return Entry(
        namespace=names[int(row["namespace"])],
        indexed=bool(row["indexed"]),
        offset=int(row["offset"]),
        n_tokens=int(row["n_tokens"]),
        n_documents=int(row["n_documents"]),
        checksums=Checksums(int(row["crc_tokens"]), int(row["crc_suffixes"]), int(row["crc_documents"])),
        largest_request=int(row["largest_request"]),
        oldest_ms=int(row["oldest_ms"]),
        newest_ms=int(row["newest_ms"]),
        dead=dead,
        dead_tokens=int(row["dead_tokens"]),
    )
