"""What the datastore's functions say they did or found. Owns these values and nothing else; knows no file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sssd.types import Int32


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What `build` or `add` stored."""

    path: Path
    n_documents: int  # stored; pieces of a cut document counted each
    n_tokens: int  # stored, separators not counted
    n_segments: int  # added to the file
    n_empty: int  # documents of no tokens, of which there is nothing to store
    n_cut: int  # documents longer than a segment, stored in pieces
    seconds: float


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """One segment of a file."""

    namespace: str
    indexed: bool  # False: a journal of a live datastore, sorted in memory by whoever opens the file
    n_tokens: int  # separators included
    n_documents: int
    n_dead: int  # documents erased or expired, not yet removed by compact
    n_bytes: int
    oldest_ms: int  # Unix time of its oldest document, milliseconds
    newest_ms: int


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What a file holds."""

    path: Path
    tokenizer: str
    vocab_size: int
    sequence: int  # commits so far
    file_bytes: int
    segments: tuple[SegmentReport, ...]
    namespaces: tuple[str, ...]
    n_tokens: int  # separators included, dead documents too
    n_documents: int  # dead ones included
    n_dead: int
    verified: bool  # every payload was held against its checksum
    problems: tuple[str, ...]  # damage found; empty for a sound file


@dataclass(frozen=True, slots=True)
class Match:
    """One place where a query stands."""

    namespace: str
    segment: int  # number of the segment within its namespace
    position: int  # of the query's first token in that segment
    continuation: Int32  # int32 [c] the tokens after the query, up to the document's end


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Where a query stands in a file."""

    n_matches: int  # in documents that are not dead
    matches: tuple[Match, ...]  # the first of them, up to the limit
