"""What a live datastore holds, and each single thing done to it. Owns the open file and the published segments.

Knows no thread: one thread at a time calls it, and long tasks are handed out as jobs and taken back when done.
Text goes through three states: remembered (in its namespace's head, in memory, searchable), persisted (in a journal
in the file as well) and sorted (in an indexed segment of the file, no longer in the head).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sssd.drafting.segments import Segment, segment_problems
from sssd.drafting.store_documents import Batch, Document, bury, concatenate, cut, live_ages, oldest_making, pack
from sssd.drafting.store_file import checked_documents, live_batch, memory_segment
from sssd.drafting.store_format import NO_REQUEST, Documents, Entry
from sssd.drafting.store_jobs import Merged, MergeJob, RewriteJob, Rewritten, merge_bytes
from sssd.drafting.store_mappings import Mappings
from sssd.drafting.store_plan import LiveOptions, excess_tokens, expiry, merge_plan, rewrite_due
from sssd.drafting.store_shelf import Holdings, Shelf
from sssd.drafting.store_writer import StoreWriter
from sssd.errors import DatastoreError
from sssd.types import Bool, Source

Publish = Callable[[str, tuple[Segment, ...]], None]

_MOST_JOURNALS = 64  # in the file, beyond one a namespace; more are folded into one each
_MOST_UNSAVED = 8  # times head_tokens that wait in memory for a disk that takes no more; beyond, the oldest are lost


class Keeper:
    """The live datastore's state. A method that raises DatastoreError leaves the file as it was before."""

    def __init__(self, writer: StoreWriter, options: LiveOptions, publish: Publish) -> None:
        """Take over an open file; `publish` is called whenever a namespace's segments change."""
        self._writer = writer
        self._options = options
        self._publish = publish
        self._mappings = Mappings(writer.file, writer.path)
        self._shelves: dict[str, Shelf] = {}
        self._largest_request = max((entry.largest_request for entry in writer.state.entries), default=NO_REQUEST)
        self._n_lost = self._n_refused = 0
        journals: dict[str, list[Batch]] = {}
        for entry in writer.state.entries:
            batches = journals.setdefault(entry.namespace, [])
            if not entry.indexed:
                batches.append(live_batch(self._mappings.payload(entry), entry.dead, writer.path))
        self._shelves = {namespace: Shelf(concatenate(batches)) for namespace, batches in journals.items()}
        self._group_entries()
        for namespace in self._shelves:
            self._sort_head(namespace)
            self.publish(namespace)

    # ---- remembering ------------------------------------------------------------------------------

    def remember(self, documents: Mapping[str, Sequence[Document]]) -> None:
        """Make documents searchable, by namespace. In memory only: `persist` follows."""
        for namespace, given in documents.items():
            added = [piece for document in given if self._fits(document) for piece in self._cut(document)]
            if added:
                self._shelves.setdefault(namespace, Shelf()).add(pack(added))
                self._largest_request = max(self._largest_request, *(piece.request_id for piece in added))
                self._sort_head(namespace)
                self.publish(namespace)

    def persist(self) -> None:
        """Write what is unsaved into journals and commit. When the disk takes no more, memory keeps a bounded part."""
        fresh = {name: shelf for name, shelf in self._shelves.items() if len(shelf.unsaved.documents)}
        if not fresh:
            return
        try:
            with self._writer.transaction():
                added = [self._writer.append(name, shelf.unsaved, None) for name, shelf in fresh.items()]
                self._commit((*self._writer.state.entries, *added))
        except DatastoreError:
            for name, shelf in fresh.items():
                self._lose_oldest(name, shelf)
            raise
        for shelf in fresh.values():
            shelf.unsaved = pack([])

    # ---- house-keeping ----------------------------------------------------------------------------

    def tidy(self, now_ms: int) -> None:
        """Turn full heads into segments, fold journals, drop what is too old or too much."""
        for namespace, shelf in self._shelves.items():
            if len(shelf.head.tokens) >= self._options.head_tokens and not len(shelf.unsaved.documents):
                self._seal(namespace, shelf)
        if sum(not entry.indexed for entry in self._writer.state.entries) > len(self._shelves) + _MOST_JOURNALS:
            self._fold_journals()
        cutoff = expiry(self._oldest_ms(), now_ms, self._options)
        if cutoff is not None:
            self._remove(lambda entry: entry.oldest_ms < cutoff, lambda documents: documents["time_ms"] < cutoff)
        excess = excess_tokens(self.holdings().n_tokens, self._options)
        if excess:
            self._drop_oldest(excess)

    def erase(self, request_id: int) -> int:
        """Make every document of a request unfindable, in memory and in the file; how many there were."""
        return self._remove(
            lambda entry: entry.largest_request >= request_id, lambda documents: documents["request_id"] == request_id
        )

    def next_job(self) -> MergeJob | RewriteJob | None:
        """The long task that is due, if any. Its result goes to `take_over`; only one may be out at a time."""
        for shelf in self._shelves.values():
            inputs = merge_plan(shelf.indexed, self._options)
            if inputs:
                payloads = tuple(self._mappings.payload(entry) for entry in inputs)
                return MergeJob(self._writer, inputs, payloads, self._writer.reserve(merge_bytes(inputs)))
        entries = self._writer.state.entries
        return (
            RewriteJob(self._writer, entries) if rewrite_due(entries, self._writer.file_bytes, self._options) else None
        )

    def take_over(self, result: Merged | Rewritten) -> None:
        """Commit what a job made and publish it."""
        if isinstance(result, Merged):
            self._commit(result.taken_over(self._writer.state.entries))
            self.publish(result.entry.namespace)
            return
        try:
            result.take_over(self._writer)
        except DatastoreError:
            result.new.discard()
            raise
        self._writer.close()
        self._writer = result.new
        self._mappings = Mappings(self._writer.file, self._writer.path)
        self._group_entries()
        for namespace in self._shelves:
            self.publish(namespace)

    def close(self) -> None:
        """Close the file; published segments live on."""
        self._writer.close()

    # ---- looking ----------------------------------------------------------------------------------

    def segments(self, namespace: str) -> tuple[Segment, ...]:
        """The namespace's segments as they are published, the head last. What did not change is the same object."""
        shelf = self._shelves[namespace]
        return (*map(self._mappings.segment, shelf.indexed), *shelf.sorted_head)

    def publish(self, namespace: str) -> None:
        """Tell the namespace's segments."""
        self._publish(namespace, self.segments(namespace))

    def holdings(self) -> Holdings:
        """Counts over all namespaces."""
        shelves = self._shelves.values()
        indexed = [entry for shelf in shelves for entry in shelf.indexed]
        return Holdings(
            namespaces=tuple(self._shelves),
            n_documents=sum(e.n_documents - e.n_dead for e in indexed) + sum(len(s.head.documents) for s in shelves),
            n_tokens=sum(e.live_tokens for e in indexed) + sum(len(s.head.tokens) for s in shelves),
            n_segments=len(indexed) + sum(len(s.sorted_head) for s in shelves),
            n_unsaved=sum(len(s.unsaved.documents) for s in shelves),
            n_lost=self._n_lost,
            n_refused=self._n_refused,
            file_bytes=self._writer.file_bytes,
            largest_request=None if self._largest_request == NO_REQUEST else self._largest_request,
        )

    def check(self) -> list[str]:
        """Every violation of the store's own rules; reads all of it."""
        found: list[str] = []
        for namespace, shelf in self._shelves.items():
            for number, segment in enumerate(self.segments(namespace)):
                found += [f"{namespace}, segment {number}: {problem}" for problem in segment_problems(segment)]
            journals = [e for e in self._writer.state.entries if e.namespace == namespace and not e.indexed]
            saved = sum(entry.n_documents - entry.n_dead for entry in journals)
            if saved + len(shelf.unsaved.documents) != len(shelf.head.documents):
                found.append(f"{namespace}: {len(shelf.head.documents)} documents in memory, {saved} in journals")
        return found

    # ---- inside -----------------------------------------------------------------------------------

    def _fits(self, document: Document) -> bool:
        vocab_size = self._writer.state.header.vocab_size
        if not len(document.tokens):
            return False
        fits = int(document.tokens.min()) >= 0 and int(document.tokens.max()) < vocab_size
        self._n_refused += not fits
        return fits

    def _cut(self, document: Document) -> list[Document]:
        return list(cut(document, self._options.segment_tokens))

    def _sort_head(self, namespace: str) -> None:
        shelf = self._shelves[namespace]
        vocab_size = self._writer.state.header.vocab_size
        shelf.sorted_head = memory_segment(shelf.head, vocab_size=vocab_size, source=Source.LIVE)

    def _commit(self, entries: Sequence[Entry]) -> None:
        """Commit, and let go of the payloads of entries that are no more."""
        self._writer.commit(entries)
        self._mappings.keep(entries)
        self._group_entries()

    def _group_entries(self) -> None:
        for shelf in self._shelves.values():
            shelf.indexed = []
        for entry in self._writer.state.entries:
            if entry.indexed:
                self._shelves[entry.namespace].indexed.append(entry)

    def _seal(self, namespace: str, shelf: Shelf) -> None:
        """The head becomes an indexed segment; its journals go."""
        with self._writer.transaction():
            entry = self._writer.append(namespace, shelf.head, shelf.sorted_head[0].suffixes)
            rest = [e for e in self._writer.state.entries if e.namespace != namespace or e.indexed]
            self._commit((*rest, entry))
        shelf.head, shelf.sorted_head = pack([]), ()
        self.publish(namespace)

    def _fold_journals(self) -> None:
        """One journal a namespace, holding its head as far as it is saved."""
        indexed = [entry for entry in self._writer.state.entries if entry.indexed]
        folded: list[Entry] = []
        with self._writer.transaction():
            for namespace, shelf in self._shelves.items():
                if shelf.n_saved:
                    folded.append(self._writer.append(namespace, shelf.saved_head(), None))
            self._commit((*indexed, *folded))

    def _remove(self, concerned: Callable[[Entry], bool], doomed: Callable[[Documents], Bool]) -> int:
        """Drop documents from the concerned entries and the heads; how many could be found before."""
        entries: list[Entry] = []
        n_removed = 0
        changed: set[str] = set()
        for entry in self._writer.state.entries:
            buried = entry
            if concerned(entry):
                documents = checked_documents(self._mappings.payload(entry), self._writer.path)
                buried = bury(entry, documents, doomed(documents))
            if buried.n_dead > entry.n_dead:
                changed.add(entry.namespace)
                n_removed += (buried.n_dead - entry.n_dead) if entry.indexed else 0
            if buried.live_tokens:
                entries.append(buried)
        if changed:
            self._commit(entries)
        for namespace, shelf in self._shelves.items():
            gone = doomed(shelf.head.documents)
            if gone.any():
                changed.add(namespace)
                n_removed += int(np.count_nonzero(gone))
                shelf.remove(gone)
                self._sort_head(namespace)
        for namespace in changed:
            self.publish(namespace)
        return n_removed

    def _drop_oldest(self, excess: int) -> None:
        """Drop the oldest documents of all namespaces, as many as make `excess` tokens."""
        entries = self._writer.state.entries
        if not entries:
            return  # a full disk: what waits in memory has its own bound
        tables = [checked_documents(self._mappings.payload(entry), self._writer.path) for entry in entries]
        cutoff = oldest_making(excess, [live_ages(e, table) for e, table in zip(entries, tables, strict=True)])
        self._remove(lambda entry: entry.oldest_ms <= cutoff, lambda documents: documents["time_ms"] <= cutoff)

    def _lose_oldest(self, namespace: str, shelf: Shelf) -> None:
        """Bound what waits for a disk that takes no more: forget the oldest unsaved documents, and count them."""
        surplus = len(shelf.unsaved.tokens) - _MOST_UNSAVED * self._options.head_tokens
        if surplus > 0:
            lost = shelf.oldest_unsaved(surplus)
            self._n_lost += int(np.count_nonzero(lost))
            shelf.remove(lost)
            self._sort_head(namespace)
            self.publish(namespace)

    def _oldest_ms(self) -> int | None:
        """Time of the oldest document; heads are in the order of time. None when there is none."""
        heads = [shelf.head.documents["time_ms"] for shelf in self._shelves.values() if len(shelf.head.documents)]
        times = [*(int(head[0]) for head in heads), *(entry.oldest_ms for entry in self._writer.state.entries)]
        return min(times, default=None)
