"""A request while it runs: its tokens and a few counters. The only mutable value of the runtime beside the pools.

Knows no engine, no drafter and no text. Region map of `tokens`:

    0 ............ prompt_len ............ n_tokens ............ capacity
    prompt         output (committed)      free, prompt_len + max_tokens in all
    <--- n_cached: these have KV in the slot; at most n_tokens - 1 --->
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sssd.config import SamplingParams
from sssd.errors import RequestError
from sssd.sampling import make_choose, needs_scores
from sssd.types import Choose, DraftOptions, Echo, FinishReason, Grammar, Int32, Row


@dataclass(slots=True, eq=False)
class Request:
    """One prompt on its way to an answer; changed by the scheduler only."""

    id: int
    prompt_len: int
    params: SamplingParams
    seed: int
    stop_ids: frozenset[int]
    needs_scores: bool  # its choices or logprobs read more than the argmax
    options: DraftOptions
    max_draft_tokens: int
    tokens: Int32  # int32 [capacity]
    n_tokens: int
    priority: int = 0  # lower goes first
    deadline: float | None = None  # on the scheduler's clock; the request ends with an error when it passes
    grammar: Grammar | None = None  # what the output must match; it stands behind the committed output
    n_cached: int = 0
    n_told: int = 0  # prompt tokens behind the first whose log-probabilities were given out
    n_reused: int = 0  # of them, copied from another slot when the request was admitted
    slot: int | None = None  # set by the scheduler while the request holds one
    admitted: float | None = None  # set by the scheduler, on its clock: when it got its first slot
    arrival: int = -1  # set by the scheduler: its place among all requests
    _choose: Choose | None = field(default=None)

    @property
    def output(self) -> Int32:
        """The committed output, int32 [n], a view."""
        return self.tokens[self.prompt_len : self.n_tokens]

    @property
    def room(self) -> int:
        """How many tokens may still be committed."""
        return len(self.tokens) - self.n_tokens

    def row(self, chunk: int) -> Row:
        """This request's part of a step in which a row has at most `chunk` columns."""
        assert self.slot is not None
        forced = self.tokens[self.n_cached : min(self.n_cached + chunk, self.n_tokens)]
        samples = self.n_cached + len(forced) == self.n_tokens
        echo = self._echo(len(forced))
        return Row(
            request_id=self.id,
            slot=self.slot,
            past_len=self.n_cached,
            forced=forced,
            # the last of the room is the target's own token: a draft node there could not be used
            budget=min(self.max_draft_tokens, self.room - 1, chunk - len(forced)) if samples else 0,
            samples=samples,
            choose=self._chooser(),
            needs_scores=(samples and self.needs_scores) or echo is not None,
            n_logprobs=self.params.logprobs,
            stop_ids=self.stop_ids,
            room=self.room,
            sources=self.options.sources,
            echo=echo,
            grammar=self.grammar,
        )

    @property
    def echoes(self) -> bool:
        """Whether log-probabilities of its prompt are still to be given out."""
        return self.params.prompt_logprobs is not None and self.n_told < self.prompt_len - 1

    def _echo(self, n_forced: int) -> Echo | None:
        """What is to be told of the forced columns. Chunks begin at the same places when a prompt is read again."""
        if not self.echoes or self.n_cached < self.n_told:
            return None
        assert self.params.prompt_logprobs is not None
        end = min(self.n_cached + n_forced + 1, self.prompt_len)
        return Echo(self.tokens[self.n_cached + 1 : end], self.params.prompt_logprobs)

    def _chooser(self) -> Choose:
        if self._choose is None or self.params.penalizes:
            self._choose = make_choose(
                self.params,
                seed=self.seed,
                prompt=self.tokens[: self.prompt_len],
                output=self.output,
                ending_ids=sorted(self.stop_ids),
                grammar=self.grammar,
            )
        return self._choose

    def commit(self, n_kept: int, new: Sequence[int]) -> FinishReason | None:
        """Count `n_kept` more cached tokens and append `new` ones; says whether and why the request is over."""
        self.tokens[self.n_tokens : self.n_tokens + len(new)] = new
        self.n_tokens += len(new)
        self.n_cached += n_kept
        assert 0 <= self.n_cached < self.n_tokens <= len(self.tokens)
        if new and new[-1] in self.stop_ids:
            return "stop"
        if self.grammar is not None:
            self.grammar.advance(new)
        return "length" if self.room == 0 else None


def make_request(
    request_id: int,
    prompt: Sequence[int] | Int32,
    params: SamplingParams,
    *,
    max_len: int,
    vocab_size: int,
    eos_ids: Sequence[int],
    options: DraftOptions,
    max_draft_tokens: int,
    priority: int = 0,
    deadline: float | None = None,
    grammar: Grammar | None = None,
) -> Request:
    """Check a prompt against the engine's limits and make the request.

    `prompt` holds n token ids. Raises RequestError when it is empty, holds an id outside of the vocabulary, or does
    not fit `max_len` together with `params.max_tokens`, or ignore_eos goes with a grammar, which ends by ending tokens.
    """
    ids = np.asarray(prompt, np.int64)
    if not len(ids):
        raise RequestError("the prompt is empty: give at least one token", param="prompt")
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        wrong = int(ids.min() if int(ids.min()) < 0 else ids.max())
        raise RequestError(f"the prompt holds token id {wrong}: allowed is 0 to {vocab_size - 1}", param="prompt")
    if len(ids) >= max_len:
        raise RequestError(
            f"the prompt has {len(ids)} tokens, and the bundle holds {max_len} with the answer: shorten it, or export "
            "with a larger --max-len",
            param="prompt",
            code="context_length_exceeded",
        )
    if len(ids) + params.max_tokens > max_len:
        raise RequestError(
            f"{len(ids)} prompt tokens and max_tokens {params.max_tokens} exceed the bundle's {max_len} tokens: "
            "shorten the prompt, lower max_tokens, or export with a larger --max-len",
            param="max_tokens",
            code="context_length_exceeded",
        )
    if grammar is not None and params.ignore_eos:
        raise RequestError(
            "ignore_eos cannot go with a constraint: the model's ending token is what ends it", param="ignore_eos"
        )
    tokens = np.zeros(len(ids) + params.max_tokens, np.int32)
    tokens[: len(ids)] = ids
    stop_ids = frozenset(params.stop_ids) | (frozenset() if params.ignore_eos else frozenset(eos_ids))
    seed = params.seed if params.seed is not None else secrets.randbits(64)
    return Request(
        request_id,
        len(ids),
        params,
        seed,
        stop_ids,
        needs_scores(params) or grammar is not None,
        replace(options, params=params, seed=seed, ending_ids=tuple(sorted(stop_ids))),
        max_draft_tokens,
        tokens,
        n_tokens=len(ids),
        priority=priority,
        deadline=deadline,
        grammar=grammar,
    )
