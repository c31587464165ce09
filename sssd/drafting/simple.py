"""Two chain drafters in plain Python: Max-Gram and prompt lookup. Owns their search and nothing else.

Knows no datastore, no tree building and no native code; they are the baselines and the bottom of a cascade.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sssd.errors import RequestError
from sssd.types import DraftJob, DraftOptions, DraftTree, Int32, Source, empty_tree

# Upper ends of the match-length classes whose acceptance is learned apart; the last class is open.
_CLASS_ENDS = (0, 1, 2, 3, 4, 6, 8, 12, 16)


class AcceptanceRates:
    """Acceptance by match length, learned online: (hits + prior) / (trials + prior weight), decaying.

    The priors rise with the match length, so a longer match never starts out below a shorter one.
    Memory is one pair of floats a class; every call is O(1) in the length of the text.
    """

    PRIOR_WEIGHT = 8.0
    DECAY = 0.999  # a class remembers about its last thousand trials

    def __init__(self) -> None:
        n_classes = len(_CLASS_ENDS) + 1
        self._prior = [0.1 + 0.85 * c / (n_classes - 1) for c in range(n_classes)]
        self._hits = [0.0] * n_classes
        self._trials = [0.0] * n_classes

    @staticmethod
    def _class_of(match_len: int) -> int:
        return sum(match_len > end for end in _CLASS_ENDS)

    def rate(self, match_len: int) -> float:
        """Estimated probability that a token copied after a match of `match_len` tokens is accepted."""
        c = self._class_of(match_len)
        return (self._hits[c] + self.PRIOR_WEIGHT * self._prior[c]) / (self._trials[c] + self.PRIOR_WEIGHT)

    def learn(self, match_len: int, accepted: bool) -> None:
        """One verdict on a token copied after a match of `match_len` tokens."""
        c = self._class_of(match_len)
        self._hits[c] = self._hits[c] * self.DECAY + accepted
        self._trials[c] = self._trials[c] * self.DECAY + 1.0


class SuffixAutomaton:
    """Online suffix automaton of one token sequence; answers the longest suffix seen before.

    Ties: of the occurrences of that suffix the earliest is reported. At most 2n states and 3n transitions;
    `extend` is amortised O(1), `longest_repeat` O(1). The live suffix itself is never an occurrence.
    """

    def __init__(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._len = [0]
        self._first_end = [0]
        self._last = 0

    def _add(self, transitions: dict[int, int], length: int, first_end: int) -> int:
        self._next.append(transitions)
        self._link.append(0)
        self._len.append(length)
        self._first_end.append(first_end)
        return len(self._len) - 1

    def extend(self, token: int) -> None:
        """Append one token."""
        length = self._len[self._last] + 1
        state = self._add({}, length, length)
        p = self._last
        while p != -1 and token not in self._next[p]:
            self._next[p][token] = state
            p = self._link[p]
        if p != -1:
            self._link[state] = self._split(p, token)
        self._last = state

    def _split(self, p: int, token: int) -> int:
        """The state of exactly p's longest string plus `token`; cloned out of a longer one where needed."""
        q = self._next[p][token]
        if self._len[q] == self._len[p] + 1:
            return q
        clone = self._add(dict(self._next[q]), self._len[p] + 1, self._first_end[q])
        self._link[clone] = self._link[q]
        self._link[q] = clone
        while p != -1 and self._next[p].get(token) == q:
            self._next[p][token] = clone
            p = self._link[p]
        return clone

    def longest_repeat(self) -> tuple[int, int]:
        """(length of the longest suffix that also ends earlier, its earliest end); (0, 0) when there is none."""
        link = self._link[self._last]
        return (self._len[link], self._first_end[link]) if link > 0 else (0, 0)


@dataclass(slots=True)
class _Request:
    """One request's text and the match its last proposal came from (set by propose)."""

    tokens: list[int]
    match_len: int = 0
    automaton: SuffixAutomaton = field(default_factory=SuffixAutomaton)  # used by Max-Gram
    first_end: dict[tuple[int, ...], int] = field(default_factory=dict)  # n-gram -> earliest end; used by lookup


class _ChainDrafter:
    """What the two chain drafters share: requests, scores, learning from verdicts."""

    def __init__(self) -> None:
        self._requests: dict[int, _Request] = {}
        self._rates = AcceptanceRates()

    def _append(self, request: _Request, token: int) -> None:
        raise NotImplementedError

    def _continuation(self, request: _Request, budget: int) -> list[int]:
        raise NotImplementedError

    def begin(self, request_id: int, prompt: Int32, options: DraftOptions) -> None:
        """Index the prompt (int32 [n]). Raises RequestError if the id is in use."""
        if request_id in self._requests:
            raise RequestError(f"request id {request_id} is in use: end it first or choose another id")
        request = _Request([])
        for token in prompt.tolist():
            self._append(request, token)
        self._requests[request_id] = request

    def propose(self, jobs: Sequence[DraftJob]) -> list[DraftTree]:
        """One chain a job, in order, of at most its budget."""
        return [self._chain(self._requests[job.request_id], job.budget) for job in jobs]

    def _chain(self, request: _Request, budget: int) -> DraftTree:
        request.match_len = 0
        tokens = self._continuation(request, budget) if budget > 0 and request.tokens else []
        if not tokens:
            return empty_tree()
        n = len(tokens)
        steps = [self._rates.rate(self._length_at(request, depth)) for depth in range(n)]
        return DraftTree(
            tokens=np.array(tokens, np.int32),
            parents=np.arange(-1, n - 1, dtype=np.int32),
            scores=np.cumprod(np.array(steps, np.float32), dtype=np.float32),
            source=np.full(n, Source.CONTEXT, np.uint8),
        )

    @staticmethod
    def _length_at(request: _Request, depth: int) -> int:
        """Match length in front of the chain's node at `depth`: every copied token lengthens it by one."""
        return request.match_len + depth if request.match_len > 0 else 0

    def accept(self, request_id: int, tokens: Int32, tree: DraftTree) -> None:
        """Append the committed tokens (int32 [k]) and learn which nodes of the verified chain were right."""
        request = self._requests[request_id]
        for depth, (guess, token) in enumerate(zip(tree.tokens.tolist(), tokens.tolist(), strict=False)):
            self._rates.learn(self._length_at(request, depth), guess == token)
            if guess != token:
                break
        for token in tokens.tolist():
            self._append(request, token)

    def end(self, request_id: int) -> None:
        """Drop the request's text."""
        assert request_id in self._requests, f"request {request_id} never began or has ended"
        del self._requests[request_id]

    def check(self) -> list[str]:
        """Requests whose remembered match is not a match."""
        return [
            f"request {request_id}: a match of {request.match_len} tokens in a text of {len(request.tokens)}"
            for request_id, request in self._requests.items()
            if not 0 <= request.match_len <= len(request.tokens)
        ]

    def close(self) -> None:
        """Nothing to release."""


class MaxGram(_ChainDrafter):
    """Copies what followed the earliest occurrence of the longest suffix that occurred before.

    Source: Cascade Speculative Drafting (arXiv 2312.11462), the model-free drafter at its bottom. The copy may
    run into its own output, which is what searching again behind the copied tokens finds; so a match always
    fills the budget. With a `bigram` table (int32 [vocabulary], -1 = unseen) a text without a match is
    continued one likely successor at a time.
    Cost: a prompt token amortised O(1), a proposal O(budget); about 1 KB a token of text.
    """

    def __init__(self, *, bigram: Int32 | None = None) -> None:
        super().__init__()
        self._bigram = bigram

    def _append(self, request: _Request, token: int) -> None:
        request.tokens.append(token)
        request.automaton.extend(token)

    def _continuation(self, request: _Request, budget: int) -> list[int]:
        request.match_len, end = request.automaton.longest_repeat()
        if request.match_len == 0:
            return self._successors(request.tokens[-1], budget)
        period = len(request.tokens) - end
        return [request.tokens[end + i % period] for i in range(budget)]

    def _successors(self, token: int, budget: int) -> list[int]:
        chain: list[int] = []
        while self._bigram is not None and len(chain) < budget and 0 <= token < len(self._bigram):
            token = int(self._bigram[token])
            if token < 0:
                break
            chain.append(token)
        return chain


class PromptLookup(_ChainDrafter):
    """Copies what followed the earliest occurrence of the last `max_ngram` tokens, or of fewer, down to one.

    The copy ends with the text. Cost: a prompt token O(max_ngram), a proposal O(max_ngram + budget).
    """

    def __init__(self, *, max_ngram: int = 3) -> None:
        if max_ngram < 1:
            raise RequestError(f"max_ngram is {max_ngram}: it must be at least 1")
        super().__init__()
        self._max_ngram = max_ngram

    def _append(self, request: _Request, token: int) -> None:
        # An n-gram that ends at the text's end is the live suffix: it becomes searchable with the next token.
        end = len(request.tokens)
        for n in range(1, min(self._max_ngram, end) + 1):
            request.first_end.setdefault(tuple(request.tokens[end - n :]), end)
        request.tokens.append(token)

    def _continuation(self, request: _Request, budget: int) -> list[int]:
        for n in range(min(self._max_ngram, len(request.tokens)), 0, -1):
            end = request.first_end.get(tuple(request.tokens[-n:]))
            if end is not None:
                request.match_len = n
                return request.tokens[end : end + budget]
        return []
