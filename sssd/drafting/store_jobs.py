"""The long tasks of a live datastore: merging segments and rewriting the file. Owns what runs beside the keeper.

A job sees a snapshot and writes only bytes that were promised to it, or its own file; the keeper takes the result over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sssd.drafting.store_documents import Batch, bury, concatenate, mask_of
from sssd.drafting.store_file import Payload, live_batch
from sssd.drafting.store_format import Documents, Entry
from sssd.drafting.store_suffix import batch_suffixes
from sssd.drafting.store_writer import StoreWriter, beside, payload_bytes
from sssd.types import Bool


@dataclass(frozen=True, slots=True, eq=False)
class MergeJob:
    """Entries of one namespace that become one."""

    writer: StoreWriter
    inputs: tuple[Entry, ...]
    payloads: tuple[Payload, ...]  # of the inputs
    offset: int  # where the result is written

    def run(self) -> Merged:
        """Sort and write the documents that were not dead when the job was made."""
        path = self.writer.path
        parts = [live_batch(p, e.dead, path) for e, p in zip(self.inputs, self.payloads, strict=True)]
        batch: Batch = concatenate(parts)
        suffixes = batch_suffixes(batch, vocab_size=self.writer.state.header.vocab_size)
        entry = self.writer.write_payload(self.offset, self.inputs[0].namespace, batch, suffixes)
        return Merged(self.inputs, entry, batch.documents)


@dataclass(frozen=True, slots=True, eq=False)
class Merged:
    """A merge's result, written and not committed."""

    inputs: tuple[Entry, ...]
    entry: Entry
    documents: Documents

    def taken_over(self, current: Sequence[Entry]) -> list[Entry]:
        """`current` with the inputs replaced by the result; documents that died meanwhile are dead in it, too."""
        now = {entry.offset: entry for entry in current}
        died = np.concatenate([_died(entry, now.get(entry.offset)) for entry in self.inputs])
        replaced = {entry.offset for entry in self.inputs}
        rest = [entry for entry in current if entry.offset not in replaced]
        return rest if died.all() else [*rest, bury(self.entry, self.documents, died)]


@dataclass(frozen=True, slots=True, eq=False)
class RewriteJob:
    """Copies the entries of a file into a new one, so that the garbage between them goes."""

    old: StoreWriter
    entries: tuple[Entry, ...]

    def run(self) -> Rewritten:
        """Copy every entry. The new file stands beside the old one, not committed."""
        state = self.old.state
        new = StoreWriter.create(beside(self.old.path), state.header, sequence=state.record.sequence)
        try:
            moved = {entry.offset: new.copy_payload(self.old.file, entry).offset for entry in self.entries}
            new.sync()
        except BaseException:
            new.discard()
            raise
        return Rewritten(new, moved)


@dataclass(frozen=True, slots=True, eq=False)
class Rewritten:
    """A new file that holds what the old one held when the job was made."""

    new: StoreWriter
    moved: Mapping[int, int]  # offset in the old file -> offset in the new one

    def take_over(self, old: StoreWriter) -> None:
        """Copy what came since, commit and move the new file into the old one's place."""
        entries = [self._entry_in_new(old, entry) for entry in old.state.entries]
        self.new.commit(entries)
        self.new.move(old.path)

    def _entry_in_new(self, old: StoreWriter, entry: Entry) -> Entry:
        if entry.offset in self.moved:
            return replace(entry, offset=self.moved[entry.offset])
        return self.new.copy_payload(old.file, entry)


def merge_bytes(inputs: Sequence[Entry]) -> int:
    """What the result of a merge takes in the file."""
    n_tokens = sum(entry.live_tokens for entry in inputs)
    n_documents = sum(entry.n_documents - entry.n_dead for entry in inputs)
    return payload_bytes(n_tokens, n_documents, indexed=True)


def _died(before: Entry, now: Entry | None) -> Bool:
    """Of the documents that lived in `before`, which are dead by now: bool [live]. None = all of them."""
    lived = ~mask_of(before.dead, before.n_documents)
    if now is None:
        return np.ones(int(lived.sum()), np.bool_)
    return mask_of(now.dead, now.n_documents)[lived]
