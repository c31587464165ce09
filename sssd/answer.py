"""From committed tokens to an answer: text, where it ends, and what it took.

The one place where an answer may end in the middle of a step. Knows no engine, no drafter and no scheduling.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from time import perf_counter

from sssd.runtime.request import Request
from sssd.text import OutputText
from sssd.types import FinishReason, Source, StepOutput, TokenLogprob, Tried


@dataclass(frozen=True, slots=True)
class Stats:
    """What one request took. Tokens are those delivered, not those computed."""

    request_id: int  # what a live datastore remembers it by
    prompt_tokens: int
    cached_tokens: int  # of them, copied from another slot instead of computed
    tokens: int
    steps: int  # forward passes that emitted tokens of this request
    accepted_lengths: dict[int, int]  # accepted draft nodes in a step -> how many steps
    drafted: dict[str, int]  # draft nodes verified, by source
    accepted: dict[str, int]  # draft nodes accepted, by source
    read_seconds: float  # from the request to its first token
    decode_seconds: float  # from its first tokens to its last
    first_tokens: int  # tokens that came with the first
    seed: int

    @property
    def tokens_per_step(self) -> float:
        """Tokens a forward pass emitted, on average."""
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Decoding speed: tokens after the first ones, per second since the first ones."""
        return (self.tokens - self.first_tokens) / self.decode_seconds if self.decode_seconds else 0.0


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished answer. Text, ids and logprobs end at the same token."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprob, ...]  # one a token where they were asked for
    offsets: tuple[int, ...]  # of each token: characters of the text before it
    prompt_logprobs: tuple[TokenLogprob, ...]  # of the prompt's tokens but the first, where they were asked for
    stats: Stats
    error: str | None = None  # why, when finish_reason is "error" or "timeout"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer as it streams; the last one carries the whole completion."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()  # one a token where they were asked for
    offsets: tuple[int, ...] = ()  # of each token: characters of the answer before it
    prompt_logprobs: tuple[TokenLogprob, ...] = ()  # with the first piece, where they were asked for
    completion: Completion | None = None
    tried: Tried | None = None  # the step's draft


class Answer:
    """One request's answer while it grows: `pieces` are waiting to be read, `completion` is set when it ends."""

    def __init__(self, request: Request, output: OutputText) -> None:
        self.request_id = request.id
        self.pieces: deque[Piece] = deque()
        self.completion: Completion | None = None
        self._request = request  # read only
        self._output = output
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._offsets: list[int] = []
        self._prompt_logprobs: list[TokenLogprob] = []
        self._lengths: dict[int, int] = {}
        self._drafted = [0] * len(Source)
        self._accepted = [0] * len(Source)
        self._began = perf_counter()
        self._first: float | None = None  # when the first tokens came
        self._first_tokens = 0

    def take(self, out: StepOutput) -> None:
        """Count a step's tokens one by one, in order, until the answer ends."""
        text: list[str] = []
        offsets: list[int] = []
        stopped = False
        for token in out.tokens:
            offsets.append(self._output.n_characters)
            if token in self._request.stop_ids and not self._request.params.include_stop:
                continue  # the walk ended here
            cut = self._output.push(token)
            text.append(cut.text)
            stopped = cut.stopped
            if stopped:
                break
        finish: FinishReason | None = "stop" if stopped else out.finish
        if finish and not stopped:
            text.append(self._output.finish())
        first = not self._token_ids
        self._count(out, len(offsets))
        self._text += text
        self._offsets += offsets
        if finish:
            self.completion = self._complete(finish, out.error)
        if finish or out.tokens:
            self.pieces.append(
                Piece(
                    "".join(text),
                    out.tokens[: len(offsets)],
                    out.logprobs[: len(offsets)],
                    tuple(offsets),
                    tuple(self._prompt_logprobs) if first else (),
                    self.completion,
                    out.tried,
                )
            )

    def _count(self, out: StepOutput, taken: int) -> None:
        self._token_ids += out.tokens[:taken]
        self._logprobs += out.logprobs[:taken]
        self._prompt_logprobs += out.prompt_logprobs
        if not out.tokens:
            return
        if self._first is None:
            self._first, self._first_tokens = perf_counter(), taken
        n = sum(out.n_accepted)
        self._lengths[n] = self._lengths.get(n, 0) + 1
        for i in range(len(Source)):
            self._drafted[i] += out.n_drafted[i]
            self._accepted[i] += out.n_accepted[i]

    def _complete(self, finish: FinishReason, error: str | None) -> Completion:
        return Completion(
            "".join(self._text),
            tuple(self._token_ids),
            finish,
            tuple(self._logprobs),
            tuple(self._offsets),
            tuple(self._prompt_logprobs),
            self.stats(),
            error,
        )

    def stats(self) -> Stats:
        """What the request has taken so far."""
        now = perf_counter()
        first = now if self._first is None else self._first
        return Stats(
            request_id=self._request.id,
            prompt_tokens=self._request.prompt_len,
            cached_tokens=self._request.n_reused,
            tokens=len(self._token_ids),
            steps=sum(self._lengths.values()),
            accepted_lengths=dict(sorted(self._lengths.items())),
            drafted=_by_source(self._drafted),
            accepted=_by_source(self._accepted),
            read_seconds=first - self._began,
            decode_seconds=now - first,
            first_tokens=self._first_tokens,
            seed=self._request.seed,
        )


def _by_source(counts: list[int]) -> dict[str, int]:
    return {source.name.lower(): counts[source] for source in Source if counts[source]}
