"""Documents laid end to end: packing them, dropping dead ones, turning document ranges into token ranges.

Knows neither files nor suffix arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sssd.drafting.segments import SEPARATOR
from sssd.drafting.store_format import DOCUMENT, Documents, Entry
from sssd.errors import DatastoreError
from sssd.types import Bool, Int32, Int64

TokenSequence = Sequence[int] | npt.NDArray[np.integer]  # one document's ids, without separator


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """One text to remember."""

    tokens: Int32  # int32 [n], without separator
    request_id: int  # the request that made it, or NO_REQUEST
    time_ms: int  # Unix time, milliseconds


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Documents and what is known of each."""

    tokens: Int32  # int32 [n]; SEPARATOR after every document
    documents: Documents  # DOCUMENT [d]; starts count from the batch's first token, growing

    @property
    def lengths(self) -> Int64:
        """int64 [d]: tokens of each document, its separator included."""
        return np.diff(self.documents["start"], append=len(self.tokens))


def as_document(tokens: TokenSequence) -> Int32:
    """`tokens` as int32 [n]. Raises DatastoreError for anything but one row of ids that fit."""
    array = np.asarray(tokens)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise DatastoreError(f"a document is one row of integer ids, not {array.dtype} of shape {array.shape}")
    if array.dtype != np.int32:
        if len(array) and (int(array.min()) < 0 or int(array.max()) >= 1 << 31):
            raise DatastoreError(
                f"ids from {int(array.min())} to {int(array.max())} in a document: ids are 0 to 2**31-1"
            )
        array = array.astype(np.int32)
    return array


def cut(document: Document, capacity: int) -> Iterator[Document]:
    """The document in pieces that fit `capacity` tokens with their separators; none for an empty one."""
    tokens = document.tokens
    for start in range(0, len(tokens), capacity - 1):
        yield replace(document, tokens=tokens[start : start + capacity - 1])


def pack(documents: Sequence[Document]) -> Batch:
    """One batch of `documents` (none empty), in order."""
    table = np.zeros(len(documents), DOCUMENT)
    tokens = np.full(sum(len(document.tokens) + 1 for document in documents), SEPARATOR, np.int32)
    at = 0
    for row, document in enumerate(documents):
        assert len(document.tokens)
        table[row] = at, document.request_id, document.time_ms
        tokens[at : at + len(document.tokens)] = document.tokens
        at += len(document.tokens) + 1
    return Batch(tokens, table)


def concatenate(batches: Sequence[Batch]) -> Batch:
    """One batch of all documents, in order."""
    tables = [batch.documents.copy() for batch in batches]
    at = 0
    for table, batch in zip(tables, batches, strict=True):
        table["start"] += at
        at += len(batch.tokens)
    if not batches:
        return pack([])
    return Batch(np.concatenate([batch.tokens for batch in batches]), np.concatenate(tables))


def select(batch: Batch, keep: Bool) -> Batch:
    """The documents of `batch` where `keep` (bool [d]) holds, in order."""
    if keep.all():
        return batch
    lengths = batch.lengths
    table = batch.documents[keep]
    table["start"] = np.cumsum(lengths[keep]) - lengths[keep]
    return Batch(batch.tokens[np.repeat(keep, lengths)], table)


def ranges_of(mask: Bool) -> Int64:
    """The runs where `mask` (bool [d]) holds, as sorted ranges [first, stop): int64 [k, 2]."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    return edges.reshape(-1, 2).astype(np.int64)


def mask_of(ranges: Int64, n: int) -> Bool:
    """The inverse of `ranges_of`: bool [n]."""
    mask = np.zeros(n, np.bool_)
    for first, stop in ranges:
        mask[first:stop] = True
    return mask


def bury(entry: Entry, documents: Documents, also_dead: Bool) -> Entry:
    """The entry with the documents where `also_dead` (bool [d]) holds dead as well."""
    dead = mask_of(entry.dead, entry.n_documents) | also_dead
    lengths = np.diff(documents["start"], append=entry.n_tokens)
    oldest = entry.oldest_ms if dead.all() else int(documents["time_ms"][~dead].min())
    return replace(entry, dead=ranges_of(dead), dead_tokens=int(lengths[dead].sum()), oldest_ms=oldest)


class Ages(NamedTuple):
    """When some documents were made, and their sizes."""

    times_ms: Int64  # int64 [d]
    lengths: Int64  # int64 [d] tokens, separators included


def live_ages(entry: Entry, documents: Documents) -> Ages:
    """Of the entry's documents that are not dead."""
    alive = ~mask_of(entry.dead, entry.n_documents)
    return Ages(documents["time_ms"][alive], np.diff(documents["start"], append=entry.n_tokens)[alive])


def oldest_making(n_tokens: int, ages: Sequence[Ages]) -> int:
    """The time up to which the oldest documents make at least `n_tokens`, or the newest time when all are fewer."""
    times = np.concatenate([age.times_ms for age in ages])
    by_age = np.argsort(times, kind="stable")
    total = np.cumsum(np.concatenate([age.lengths for age in ages])[by_age])
    last = min(int(np.searchsorted(total, n_tokens)), len(times) - 1)
    return int(times[by_age[last]])


def token_ranges(documents: Documents, n_tokens: int, dead: Int64) -> Int64:
    """The token positions of the document ranges `dead` (int64 [k, 2]): int64 [k, 2]."""
    bounds = np.append(documents["start"], n_tokens)
    return bounds[dead].astype(np.int64).reshape(-1, 2)


def table_problems(documents: Documents, tokens: Int32) -> list[str]:
    """What is wrong with a document table of `tokens`; empty when each document ends at its separator."""
    bounds = np.append(documents["start"], len(tokens))
    if len(documents) == 0 or bounds[0] != 0 or np.any(np.diff(bounds) < 2):
        return ["the document table is not a growing list of starts"]
    if not np.array_equal(np.flatnonzero(tokens == SEPARATOR), bounds[1:] - 1):
        return ["documents do not end at their separators"]
    return []
