"""Suffix arrays of token sequences. Owns the byte code that lets a byte sorter sort tokens, and the sorting call.

Knows nothing of files, documents' metadata or drafting.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from sssd.drafting.segments import SEPARATOR
from sssd.drafting.store_documents import Batch
from sssd.errors import DatastoreError, MissingExtra
from sssd.types import Int32, Uint8

LARGEST_SEGMENT = 512 * 1024 * 1024  # tokens; three code bytes each stay within the sorter's int32 positions
_PIECE = 1 << 18  # elements handled at once, so that temporaries stay in cache


def suffix_array(tokens: Int32, *, vocab_size: int) -> Int32:
    """The positions of `tokens` that hold no SEPARATOR, sorted by what follows: int32 [m].

    `tokens` is int32 [n] and ends with SEPARATOR. The result is a view of the sorter's scratch (8 to 12 bytes a
    token): copy it to keep it. Releases the GIL while it sorts. O(n log n).
    Raises DatastoreError for an id outside [0, vocab_size), MissingExtra without pydivsufsort.
    """
    n = len(tokens)
    assert 0 < n <= LARGEST_SEGMENT
    assert tokens[-1] == SEPARATOR
    sorter = load_sorter()
    _check_range(tokens, vocab_size)
    codes = _byte_code(tokens, vocab_size)
    width = codes.shape[1]
    order = np.empty(n * width, np.int32)
    failed = sorter.divsufsort(
        codes.ctypes.data_as(ctypes.c_void_p), order.ctypes.data_as(ctypes.c_void_p), ctypes.c_int32(n * width)
    )
    if failed:
        raise DatastoreError(f"sorting a segment of {n} tokens needs {n * width * 5} bytes of memory: lower --memory")
    kept = _whole_tokens(order, width)
    assert kept == n
    n_separators = int(np.count_nonzero(tokens == SEPARATOR))
    return order[n_separators:n]  # separators have the lowest code: their suffixes come first


def batch_suffixes(batch: Batch, *, vocab_size: int) -> Int32:
    """`suffix_array` of a batch. Raises DatastoreError also when a document holds SEPARATOR itself."""
    suffixes = suffix_array(batch.tokens, vocab_size=vocab_size)
    if len(suffixes) != len(batch.tokens) - len(batch.documents):
        raise _out_of_range(SEPARATOR, vocab_size)
    return suffixes


def scratch_bytes(vocab_size: int) -> int:
    """Most bytes a token that `suffix_array` needs beside the tokens: its code and an int32 for each code byte."""
    return 5 * (2 if vocab_size < 1 << 16 else 3)


def load_sorter() -> Any:
    """The C library inside pydivsufsort. Raises MissingExtra when it is not installed.

    Its own Python wrapper zeroes the output under the GIL (seen: 137 ms at 16 M tokens), which would stall a
    drafting thread; called like this the longest pause is the scheduler's.
    """
    try:
        from pydivsufsort.dll import libdivsufsort
    except ImportError as error:
        raise MissingExtra("pydivsufsort", "datastore") from error
    return libdivsufsort


def _check_range(tokens: Int32, vocab_size: int) -> None:
    for bad in (int(tokens.max()), int(tokens.min())):
        if not SEPARATOR <= bad < vocab_size:
            raise _out_of_range(bad, vocab_size)


def _out_of_range(bad: int, vocab_size: int) -> DatastoreError:
    return DatastoreError(
        f"token id {bad} in the text, but the tokenizer has ids 0 to {vocab_size - 1}: "
        "tokenize it with the datastore's own tokenizer"
    )


def _byte_code(tokens: Int32, vocab_size: int) -> Uint8:
    """Big-endian codes in the order of the ids, SEPARATOR lowest: uint8 [n, 2], or [n, 3] past 65,535 distinct ids."""
    code_of = np.arange(vocab_size + 1, dtype=np.int32)  # indexed by id + 1
    if vocab_size >= 1 << 16:
        present = np.zeros(vocab_size + 1, np.bool_)
        present[0] = True
        for start in range(0, len(tokens), _PIECE):
            present[tokens[start : start + _PIECE] + 1] = True
        if np.count_nonzero(present) <= 1 << 16:
            code_of = (np.cumsum(present) - 1).astype(np.int32)
    width = 2 if code_of[-1] < 1 << 16 else 3
    codes = np.empty((len(tokens), width), np.uint8)
    for start in range(0, len(tokens), _PIECE):
        piece = code_of[tokens[start : start + _PIECE] + 1]
        for column in range(width):
            codes[start : start + _PIECE, column] = (piece >> (8 * (width - 1 - column))) & 0xFF
    return codes


def _whole_tokens(order: Int32, width: int) -> int:
    """Move the sorted positions that begin a token to the front of `order`, as token positions; how many there are."""
    kept = 0
    for start in range(0, len(order), _PIECE):
        positions, inside = np.divmod(order[start : start + _PIECE], np.int32(width))
        whole = positions[inside == 0]
        order[kept : kept + len(whole)] = whole  # kept <= start: what is overwritten has been read
        kept += len(whole)
    return kept
