"""One namespace's newest text in memory, and the counts a live datastore reports. Owns what is saved and what is not.

Knows neither files nor when anything is saved.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sssd.drafting.segments import Segment
from sssd.drafting.store_documents import Batch, concatenate, pack, select
from sssd.drafting.store_format import Entry
from sssd.types import Bool


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a live datastore holds at one moment."""

    namespaces: tuple[str, ...]
    n_documents: int  # that can be found
    n_tokens: int  # that can be found, separators included
    n_segments: int  # over all namespaces
    n_unsaved: int  # documents in memory that the file does not hold yet
    n_lost: int  # documents that could be neither saved nor kept in memory any longer: the disk is full
    n_refused: int  # documents with ids outside the vocabulary
    file_bytes: int
    largest_request: int | None  # largest request id remembered or found in the file; continue counting above it


@dataclass(slots=True, eq=False)
class Shelf:
    """One namespace in memory. Only its keeper changes it."""

    head: Batch = field(default_factory=lambda: pack([]))  # newest documents, in no indexed segment yet
    unsaved: Batch = field(default_factory=lambda: pack([]))  # the end of the head that no journal holds yet
    sorted_head: tuple[Segment, ...] = ()  # one segment of the head; none for an empty one
    indexed: list[Entry] = field(default_factory=list)  # the namespace's segments in the file

    @property
    def n_saved(self) -> int:
        """Documents at the beginning of the head that journals hold."""
        return len(self.head.documents) - len(self.unsaved.documents)

    def saved_head(self) -> Batch:
        """The part of the head that journals hold."""
        return select(self.head, np.arange(len(self.head.documents)) < self.n_saved)

    def add(self, batch: Batch) -> None:
        """New documents, not saved yet."""
        self.head = concatenate([self.head, batch])
        self.unsaved = concatenate([self.unsaved, batch])

    def remove(self, doomed: Bool) -> None:
        """Forget the head's documents where `doomed` (bool [d]) holds."""
        self.unsaved = select(self.unsaved, ~doomed[self.n_saved :])
        self.head = select(self.head, ~doomed)

    def oldest_unsaved(self, surplus: int) -> Bool:
        """The oldest unsaved documents that make at least `surplus` tokens: bool [d] over the head."""
        doomed = np.zeros(len(self.head.documents), np.bool_)
        doomed[self.n_saved :] = self.unsaved.documents["start"] < surplus
        return doomed
