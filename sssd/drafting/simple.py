"""Two chain drafters in plain Python: Max-Gram and prompt lookup. Owns their search and nothing else.

Knows no datastore, no tree building and no native code; they are the baselines and the bottom of a cascade.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sssd.drafting.automaton import Joined, Match, SuffixAutomaton
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


@dataclass(slots=True)
class _Request:
    """One request's text and the match its last proposal came from (set by propose)."""

    tokens: list[int]
    match_len: int = 0
    automaton: SuffixAutomaton = field(default_factory=SuffixAutomaton)  # used by Max-Gram
    first_end: dict[tuple[int, ...], int] = field(default_factory=dict)  # n-gram -> earliest end; used by lookup


class _Copy(NamedTuple):
    """A continuation and the length of the match that it follows; 0 = it was not copied."""

    tokens: list[int]
    match_len: int


class _ChainDrafter:
    """What the two chain drafters share: requests, scores, learning from verdicts."""

    def __init__(self) -> None:
        self._requests: dict[int, _Request] = {}
        self._rates = AcceptanceRates()

    def _append(self, request: _Request, token: int) -> None:
        raise NotImplementedError

    def _continuation(self, request: _Request, ahead: list[int], budget: int) -> _Copy:
        """What may follow the request's text with `ahead` behind it."""
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
        return [self._chain(self._requests[job.request_id], job.budget, job.ahead) for job in jobs]

    def _chain(self, request: _Request, budget: int, ahead: Int32 | None) -> DraftTree:
        if ahead is None:
            request.match_len = 0
        guesses = [] if ahead is None else ahead.tolist()
        if budget < 1 or not (request.tokens or guesses):
            return empty_tree()
        found = self._continuation(request, guesses, budget)
        if not found.tokens:
            return empty_tree()
        if ahead is None:
            request.match_len = found.match_len
        tokens, n = found.tokens, len(found.tokens)
        steps = [self._rates.rate(self._length_at(found.match_len, depth)) for depth in range(n)]
        return DraftTree(
            tokens=np.array(tokens, np.int32),
            parents=np.arange(-1, n - 1, dtype=np.int32),
            scores=np.cumprod(np.array(steps, np.float32), dtype=np.float32),
            source=np.full(n, Source.CONTEXT, np.uint8),
        )

    @staticmethod
    def _length_at(match_len: int, depth: int) -> int:
        """Match length in front of the chain's node at `depth`: every copied token lengthens it by one."""
        return match_len + depth if match_len > 0 else 0

    def accept(self, request_id: int, tokens: Int32, tree: DraftTree) -> None:
        """Append the committed tokens (int32 [k]) and learn which nodes of the verified chain were right."""
        request = self._requests[request_id]
        for depth, (guess, token) in enumerate(zip(tree.tokens.tolist(), tokens.tolist(), strict=False)):
            self._rates.learn(self._length_at(request.match_len, depth), guess == token)
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

    def _continuation(self, request: _Request, ahead: list[int], budget: int) -> _Copy:
        match = request.automaton.longest_match(ahead)
        text = Joined(request.tokens, ahead)
        for end in range(len(request.tokens) + 1, len(text)):  # matches that end in the guesses themselves
            length = text.agreeing(end)
            if length > match.length:
                match = Match(length, end)
        if match.length == 0:
            return _Copy(self._successors(text[len(text) - 1], budget), 0)
        period = len(text) - match.end
        return _Copy([text[match.end + i % period] for i in range(budget)], match.length)

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

    def _continuation(self, request: _Request, ahead: list[int], budget: int) -> _Copy:
        text = Joined(request.tokens, ahead)
        for n in range(min(self._max_ngram, len(text)), 0, -1):
            ngram = tuple(text[i] for i in range(len(text) - n, len(text)))
            end = request.first_end.get(ngram)
            if end is not None:
                return _Copy([text[i] for i in range(end, min(end + budget, len(text)))], n)
        return _Copy([], 0)
