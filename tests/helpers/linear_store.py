"""The datastore's slow twin: a list of documents, scanned from end to end for every question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sssd.drafting.segments import SEPARATOR, Segment
from sssd.drafting.store_search import document_tail, matching_positions

Tail = tuple[int, ...]


@dataclass
class LinearStore:
    """Documents by request id, in no index."""

    documents: list[tuple[int, list[int]]] = field(default_factory=list)

    def add(self, tokens: Sequence[int], request_id: int = -1) -> None:
        self.documents.append((request_id, [int(token) for token in tokens]))

    def erase(self, request_id: int) -> int:
        before = len(self.documents)
        self.documents = [(i, tokens) for i, tokens in self.documents if i != request_id]
        return before - len(self.documents)

    def continuations(self, query: Sequence[int], length: int) -> Counter[Tail]:
        found: Counter[Tail] = Counter()
        for _, tokens in self.documents:
            for at in range(len(tokens) - len(query) + 1):
                if tokens[at : at + len(query)] == list(query):
                    after = at + len(query)
                    found[tuple(tokens[after : after + length])] += 1
        return found


def continuations(segments: Iterable[Segment], query: Sequence[int], length: int) -> Counter[Tail]:
    """What the segments say to the same question."""
    wanted = np.array(query, np.int32)
    found: Counter[Tail] = Counter()
    for segment in segments:
        for position in matching_positions(segment, wanted).tolist():
            found[tuple(document_tail(segment, position + len(wanted), length).tolist())] += 1
    return found


def live_documents(segments: Iterable[Segment]) -> list[list[int]]:
    """The documents of the segments that are not dead, read off their tokens."""
    documents: list[list[int]] = []
    for segment in segments:
        dead = {int(p) for start, stop in segment.dead for p in range(start, stop)}
        document: list[int] = []
        for position, token in enumerate(segment.tokens.tolist()):
            if token == SEPARATOR:
                if position not in dead:
                    documents.append(document)
                document = []
            else:
                document.append(token)
    return documents


def random_documents(rng: np.random.Generator, n: int, *, vocab_size: int, longest: int = 40) -> list[list[int]]:
    """Documents of 1 to `longest` tokens; few different ids, so that queries match often."""
    return [rng.integers(0, vocab_size, int(rng.integers(1, longest + 1))).tolist() for _ in range(n)]
