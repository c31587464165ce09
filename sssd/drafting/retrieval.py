"""The retrieval drafter: request and namespace names in front of the native core. Owns the core's arrays.

Knows no file format, no text and no model; segments come from whoever keeps a datastore. How a tree is found is the
core's affair (csrc/drafter.h).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from sssd import _core
from sssd.drafting import confidence
from sssd.drafting.rules import AuthorsRules, MixtureRules
from sssd.drafting.segments import Segment
from sssd.errors import RequestError, SssdError
from sssd.types import DraftJob, DraftOptions, DraftTree, Int32, Source

DEFAULT_NAMESPACE = "default"  # exists without anything published into it
_NOTHING = np.zeros(0, np.int32)
_ARENA_ROWS = 256  # making one costs as much as handing out five trees


class Memory(Protocol):
    """Keeps finished requests; must not wait."""

    def remember(self, request_id: int, namespace: str, tokens: Int32) -> None:
        """`tokens` is int32 [n]: the output, behind the last few tokens of the prompt."""


class Store(Protocol):
    """An open datastore."""

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Every namespace it holds."""

    def segments(self, namespace: str) -> tuple[Segment, ...]:
        """The segments of one of them."""


@dataclass(frozen=True, slots=True)
class RetrievalConfig:
    """How the drafter works. Raises SssdError for a value out of range."""

    rules: MixtureRules | AuthorsRules = field(default_factory=MixtureRules)
    n_threads: int = 2  # that draft, the caller's among them
    rows_per_thread: int = 12  # with fewer rows a thread than this, the caller drafts alone: waking costs 50-100 us
    background_from: int = 4096  # prompts of so many tokens are indexed on a thread of their own
    learn: bool = True  # correct the scores by verdicts
    remembered_prompt: int = 3  # prompt tokens that are remembered in front of an output

    def __post_init__(self) -> None:
        for name, least in (("n_threads", 1), ("rows_per_thread", 1), ("background_from", 1), ("remembered_prompt", 0)):
            if getattr(self, name) < least:
                raise SssdError(f"{name} is {getattr(self, name)}: allowed is {least} or more")


class _Arena:
    """Rows of trees that the core writes and callers keep: each is handed out once, as it lies, and never copied.

    A tree that is kept keeps its arena. The core looks at the arrays once; the small ones are reached through
    memoryviews: an element costs a quarter of what it costs through numpy.
    """

    __slots__ = ("batch", "budgets", "counts", "ids", "n_rows", "trees", "used", "width")

    def __init__(self, n_rows: int, width: int) -> None:
        ids, budgets, counts = np.zeros(n_rows, np.int64), np.zeros(n_rows, np.int32), np.zeros(n_rows, np.int32)
        tokens, parents = np.empty((n_rows, width), np.int32), np.empty((n_rows, width), np.int32)
        scores, source = np.empty((n_rows, width), np.float32), np.empty((n_rows, width), np.uint8)
        self.n_rows = n_rows
        self.width = width
        self.used = 0  # rows handed out
        self.ids, self.budgets, self.counts = ids.data, budgets.data, counts.data
        self.trees = zip(tokens, parents, scores, source, strict=True)  # the rows not handed out yet
        self.batch = _core.Batch(
            request_ids=ids,
            budgets=budgets,
            tokens=tokens,
            parents=parents,
            scores=scores,
            source=source,
            counts=counts,
        )

    def hand_out(self, n_rows: int) -> list[DraftTree]:
        """The next rows' trees; the core has written them."""
        row, width, counts = self.used, self.width, self.counts
        self.used = row + n_rows
        handed = []
        for tokens, parents, scores, source in islice(self.trees, n_rows):
            n = counts[row]
            row += 1
            if n < width:
                tokens, parents, scores, source = tokens[:n], parents[:n], scores[:n], source[:n]
            handed.append(DraftTree(tokens, parents, scores, source))
        return handed


def _allows(options: DraftOptions, *sources: Source) -> bool:
    """Whether the request may draft from one of the sources; what is searched for nothing would take its budget."""
    return options.sources is None or not options.sources.isdisjoint(sources)


class _Published(NamedTuple):
    segment: Segment
    native: _core.Segment


class _Shelf:
    """One namespace's segments: those of files and those of the live datastore."""

    def __init__(self, namespace_id: int) -> None:
        self.namespace_id = namespace_id
        self.files: list[_Published] = []
        self.live: list[_Published] = []

    def replace_live(self, segments: Sequence[Segment]) -> None:
        """Segments that were there before keep their native side, and with it what it has learned."""
        known = {id(p.segment): p for p in self.live}
        self.live = [known.get(id(s)) or _publishable(s) for s in segments]

    def native(self) -> list[_core.Segment]:
        return [p.native for p in (*self.files, *self.live)]


def _publishable(segment: Segment) -> _Published:
    native = _core.Segment(segment.tokens, segment.suffixes, segment.dead, int(segment.source))
    return _Published(segment, native)


class Retrieval:
    """Drafts from a request's own text, its namespaces' datastores, live text and the client's prediction.

    Implements Drafter. Alone it works the same: begin, then propose and accept in turn, then end.
    Cost: propose a few microseconds a row; accept about one; begin 0.1 us a prompt token, or none on this thread
    for a long prompt, which drafts nothing until it is indexed.
    Memory: about 150 bytes a token of a running request; a published segment's hints, at most 2 MB.
    """

    def __init__(self, config: RetrievalConfig | None = None, *, memory: Memory | None = None) -> None:
        self.config = config or RetrievalConfig()
        rules = self.config.rules
        mixture = rules if isinstance(rules, MixtureRules) else MixtureRules()
        self._core = _core.Drafter(
            _core.MixtureRules(**asdict(mixture)),
            _core.AuthorsRules(**asdict(rules)) if isinstance(rules, AuthorsRules) else None,
            n_threads=self.config.n_threads,
            rows_per_thread=self.config.rows_per_thread,
            background_from=self.config.background_from,
            learn=self.config.learn,
        )
        self._memory = memory
        self._lock = threading.Lock()  # guards the shelves: publish comes from other threads
        self._shelves: dict[str, _Shelf] = {}
        self._remembered_in: dict[int, str | None] = {}  # running requests; None = opted out
        self._arena = _Arena(0, 0)
        with self._lock:
            self._shelf(DEFAULT_NAMESPACE)

    # ---- what there is to draft from ---------------------------------------------------------

    def attach(self, store: Store) -> None:
        """Draft from a datastore file as well, in the namespaces it holds. Any thread."""
        with self._lock:
            for namespace in store.namespaces:
                shelf = self._shelf(namespace)
                shelf.files += [_publishable(s) for s in store.segments(namespace)]
                self._core.publish(shelf.namespace_id, shelf.native())

    def publish(self, namespace: str, segments: Sequence[Segment]) -> None:
        """Replace a namespace's live segments, at once for every later draft. Any thread; never waits for drafting."""
        with self._lock:
            shelf = self._shelf(namespace)
            shelf.replace_live(segments)
            self._core.publish(shelf.namespace_id, shelf.native())

    def _shelf(self, namespace: str) -> _Shelf:
        return self._shelves.setdefault(namespace, _Shelf(len(self._shelves)))

    # ---- Drafter -------------------------------------------------------------------------------

    def begin(self, request_id: int, prompt: Int32, options: DraftOptions) -> None:
        """Index the prompt. Raises RequestError if the id is in use or a namespace unknown.

        The first namespace is the request's own: its text is remembered there, and there alone it may come to be
        with the request.
        """
        if request_id in self._remembered_in:
            raise RequestError(f"request id {request_id} is in use: end it first or choose another id")
        remembered = options.remember and self._memory is not None and bool(options.namespaces)
        with self._lock:
            if remembered:
                self._shelf(options.namespaces[0])
            unknown = [name for name in options.namespaces if name not in self._shelves]
            if unknown:
                known = ", ".join(sorted(self._shelves))
                raise RequestError(f"no namespace {unknown[0]!r}: there are {known}", param="namespaces")
            read = options.namespaces if _allows(options, Source.DATASTORE, Source.LIVE) else ()
            ids = np.array([self._shelves[name].namespace_id for name in read], np.int64)
        prediction = options.prediction if _allows(options, Source.PREDICTION) else None
        self._core.begin(request_id, prompt, ids, _NOTHING if prediction is None else prediction)
        self._remembered_in[request_id] = options.namespaces[0] if remembered else None

    def propose(self, jobs: Sequence[DraftJob]) -> list[DraftTree]:
        """One tree a job, in order; the whole batch in one native call without the GIL."""
        width = 0
        for _, budget, ahead in jobs:
            if ahead is not None:
                return [self._behind(job) if job.ahead is not None else self.propose([job])[0] for job in jobs]
            if budget > width:
                width = budget
        arena = self._arena
        n_rows = len(jobs)
        if arena.used + n_rows > arena.n_rows or width > arena.width:
            arena = self._arena = _Arena(max(_ARENA_ROWS, n_rows), max(width, 1))
        row, ids, budgets = arena.used, arena.ids, arena.budgets
        for request_id, budget, _ in jobs:
            ids[row] = request_id
            budgets[row] = budget
            row += 1
        self._core.propose(arena.batch, arena.used, n_rows)
        return arena.hand_out(n_rows)

    def _behind(self, job: DraftJob) -> DraftTree:
        assert job.ahead is not None
        return DraftTree(*self._core.propose_behind(job.request_id, job.ahead, max(job.budget, 0)))

    def accept(self, request_id: int, tokens: Int32, tree: DraftTree) -> None:
        """Append committed tokens (int32 [k]) and learn from the tree proposed last, whatever of it was verified."""
        self._core.accept(request_id, tokens)

    def end(self, request_id: int) -> None:
        """Hand the request's text to the memory, if it is to be remembered, and drop it."""
        assert request_id in self._remembered_in, f"request {request_id} never began or has ended"
        namespace = self._remembered_in.pop(request_id)
        if namespace is not None and self._memory is not None:
            text = self._core.text(request_id, self.config.remembered_prompt)
            self._memory.remember(request_id, namespace, text)
        self._core.end(request_id)

    def check(self) -> list[str]:
        """All violations of the core's invariants. O(everything indexed and published)."""
        with self._lock:
            return self._core.check()

    def close(self) -> None:
        """Drop every segment, so that mapped files can go. Safe to call twice."""
        with self._lock:
            for shelf in self._shelves.values():
                shelf.files, shelf.live = [], []
                self._core.publish(shelf.namespace_id, [])

    # ---- what it knows about itself --------------------------------------------------------------

    def settle(self) -> None:
        """Return when every prompt given so far is indexed; for measurements and tests."""
        self._core.settle()

    def memory_bytes(self) -> int:
        """Bytes held by requests, indexes and hints; not the segments' own arrays."""
        return self._core.memory()

    def reliability(self) -> tuple[confidence.ReliabilityBin, ...]:
        """Predicted against observed acceptance of every judged node since the start, by score."""
        return confidence.reliability_table(self._core.reliability())

    def save_confidence(self, path: Path) -> None:
        """Write what was learned about the scores, by namespace. Raises DatastoreError."""
        with self._lock:
            states = {name: self._core.confidence(shelf.namespace_id) for name, shelf in self._shelves.items()}
        confidence.save(path, states)

    def load_confidence(self, path: Path) -> None:
        """Take up what `save_confidence` wrote. Raises DatastoreError or RevisionMismatch."""
        for name, state in confidence.load(path).items():
            with self._lock:
                shelf = self._shelf(name)
            self._core.restore_confidence(shelf.namespace_id, state)
