"""From one node's scores to one token. Owns the order of operations and the noise; knows no tree and no engine.

Sampling is by Gumbel's trick: the token with the largest score / temperature + noise is a draw from the softmax. The
noise of a token is a function of (seed, position, token id) only, so a draw does not depend on whether, when or beside
what it was computed, and a draft model that uses the same noise agrees with its target as often as can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sssd.config import SamplingParams
from sssd.types import Choose, Float32, Grammar, Int32, Int64, NodeScores, TokenLogprob

_Float64 = npt.NDArray[np.float64]
_UInt64 = npt.NDArray[np.uint64]


def needs_scores(params: SamplingParams) -> bool:
    """Whether choosing or reporting reads more than the argmax."""
    greedy = params.temperature == 0 and not params.penalizes and not params.logit_bias and not params.min_tokens
    return not greedy or params.logprobs is not None


def make_choose(
    params: SamplingParams,
    *,
    seed: int,
    prompt: Int32,
    output: Int32,
    ending_ids: Sequence[int],
    grammar: Grammar | None = None,
) -> Choose:
    """The request's way to choose a token; steps that are off are not in it.

    `prompt` and `output` are int32 [n], the committed tokens; `output` matters only when `params.penalizes`, and the
    caller then makes a new one for every step. `ending_ids` are what min_tokens bans. `grammar` needs scores of the
    whole vocabulary.
    """
    plain = params.temperature == 0 and not needs_scores(replace(params, logprobs=None))
    if plain and grammar is None:
        return _argmax
    edits: list[_Edit] = []
    if params.penalizes:
        edits.append(_Penalties(params, prompt, output))
    if params.logit_bias:
        edits.append(_Bias(params.logit_bias))
    if grammar is not None:
        edits.append(_Mask(grammar))
    if params.min_tokens:
        edits.append(_Ban(tuple(ending_ids), until=len(prompt) + params.min_tokens))
    chooser = _Chooser(params, seed, tuple(edits))
    return chooser if grammar is None or not plain else _GuidedArgmax(grammar, chooser)


def token_logprob(node: NodeScores, token: int, n_top: int) -> TokenLogprob:
    """Log-probability of `token` and the `n_top` best tokens under the model's own scores.

    Where the engine keeps K scores only, a token outside of them has the log-probability of the last one kept, as an
    upper bound.
    """
    assert node.scores is not None, "logprobs were asked for without scores"
    lse = node.lse if node.lse is not None else _log_sum_exp(node.scores)
    if node.ids is None:
        n = min(n_top, len(node.scores))
        best = np.argpartition(-node.scores, n - 1)[:n] if n else np.zeros(0, np.int64)
        best = best[np.lexsort((best, -node.scores[best]))]
        own = float(node.scores[token])
        top = [(int(i), float(node.scores[i]) - lse) for i in best]
    else:
        place = np.flatnonzero(node.ids == token)
        own = float(node.scores[place[0] if len(place) else -1])
        top = [(int(i), float(s) - lse) for i, s in zip(node.ids[:n_top], node.scores[:n_top], strict=True)]
    return TokenLogprob(token, own - lse, tuple(top))


def gumbel(seed: int, position: int, ids: Int64) -> _Float64:
    """Gumbel noise of each token id, float64 [n]: a counter-based hash, the same on every machine.

    Uses the finalizer of SplitMix64 (Steele, Lea and Flood 2014); u has 53 bits and is never 0 or 1.
    """
    key = _mix(np.array([(seed + 0x9E3779B97F4A7C15 * (position + 1)) % 2**64], np.uint64))
    bits = _mix(key ^ _mix(ids.astype(np.uint64) + np.uint64(1)))
    u = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    noise: _Float64 = -np.log(-np.log(u))
    return noise


def _mix(x: _UInt64) -> _UInt64:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: _UInt64 = x ^ (x >> np.uint64(31))
    return mixed


def _argmax(node: NodeScores, position: int, emitted: Sequence[int], noise: float) -> int | None:
    if noise == 0:
        return node.next_id
    if node.scores is None:
        return None
    return node.next_id if _leads(node.scores, int(node.scores.argmax()), 2 * noise) else None


def _leads(scores: npt.NDArray[np.floating], place: int, by: float) -> bool:
    """Whether the score at `place` is above every other one by more than `by`."""
    others = np.concatenate([scores[:place], scores[place + 1 :]])
    return not len(others) or bool(scores[place] - others.max() > by)


class _Edit:
    """Changes the scores of some tokens before the draw."""

    def apply(self, ids: Int64 | None, scores: Float32, position: int, emitted: Sequence[int]) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class _Penalties(_Edit):
    params: SamplingParams
    prompt: Int32
    output: Int32

    def apply(self, ids: Int64 | None, scores: Float32, position: int, emitted: Sequence[int]) -> None:
        output = np.concatenate([self.output, np.asarray(emitted, np.int32)])
        if self.params.repetition_penalty != 1:
            at = _places(ids, np.union1d(self.prompt, output))
            seen = scores[at]
            factor = np.float32(self.params.repetition_penalty)
            scores[at] = np.where(seen > 0, seen / factor, seen * factor)
        values, counts = np.unique(output, return_counts=True)
        minus = self.params.presence_penalty + self.params.frequency_penalty * counts
        if ids is not None:
            there = np.isin(values, ids)
            values, minus = values[there], minus[there]
        scores[_places(ids, values)] -= minus.astype(np.float32)


@dataclass(frozen=True)
class _Bias(_Edit):
    bias: tuple[tuple[int, float], ...]

    def apply(self, ids: Int64 | None, scores: Float32, position: int, emitted: Sequence[int]) -> None:
        for token, value in self.bias:
            scores[_places(ids, np.array([token]))] += np.float32(value)


@dataclass(frozen=True)
class _Mask(_Edit):
    grammar: Grammar

    def apply(self, ids: Int64 | None, scores: Float32, position: int, emitted: Sequence[int]) -> None:
        assert ids is None, "a grammar needs the scores of every token"
        scores[~self.grammar.allowed(emitted)] = -np.inf


@dataclass(frozen=True)
class _Ban(_Edit):
    """Yields where a grammar leaves nothing but an end."""

    tokens: tuple[int, ...]
    until: int  # absolute position of the first token that may end the output

    def apply(self, ids: Int64 | None, scores: Float32, position: int, emitted: Sequence[int]) -> None:
        if position < self.until:
            at = _places(ids, np.array(self.tokens, np.int64))
            before = scores[at]
            scores[at] = -np.inf
            if scores.max() == -np.inf:
                scores[at] = before


def _places(ids: Int64 | None, tokens: npt.NDArray[np.integer]) -> Int64:
    """Where the scores of `tokens` stand: int64 [<= n], in the tokens' order when the vocabulary is whole."""
    if ids is None:
        return tokens.astype(np.int64)
    order = np.argsort(ids, kind="stable")
    at = np.minimum(np.searchsorted(ids, tokens, sorter=order), len(ids) - 1)
    places: Int64 = order[at]
    found: Int64 = places[ids[places] == tokens]
    return found


@dataclass(frozen=True)
class _Chooser:
    params: SamplingParams
    seed: int
    edits: tuple[_Edit, ...]

    def __call__(self, node: NodeScores, position: int, emitted: Sequence[int], noise: float) -> int | None:
        assert node.scores is not None, "this request needs scores"
        scores = node.scores
        if self.edits:
            scores = scores.copy()
            for edit in self.edits:
                edit.apply(node.ids, scores, position, emitted)
        penalty = self.params.repetition_penalty
        place = self._place(node.ids, scores, position, noise * max(penalty, 1 / penalty))
        if place is None or node.ids is None:
            return place
        return int(node.ids[place])

    def _place(self, ids: Int64 | None, scores: Float32, position: int, noise: float) -> int | None:
        if self.params.temperature == 0:
            place = int(scores.argmax())
            return place if noise == 0 or _leads(scores, place, 2 * noise) else None
        scaled = scores * np.float32(1 / self.params.temperature)
        kept = _candidates(scaled, self.params, self.params.top_p)
        place = int(kept[(scaled[kept] + self._gumbel(ids, kept, position)).argmax()])
        sure = noise == 0 or self._sure(ids, scaled, position, place, 2 * noise / self.params.temperature)
        return place if sure else None

    def _gumbel(self, ids: Int64 | None, places: Int64, position: int) -> _Float64:
        return gumbel(self.seed, position, places if ids is None else ids[places])

    def _sure(self, ids: Int64 | None, scaled: Float32, position: int, place: int, off: float) -> bool:
        """Whether the draw stays the same when any two scores move against each other by `off`.

        Sufficient, not necessary: it leads all tokens, filtered or not, and passes the filters even when lowered by
        `off` and with every weight before it raised by that much.
        """
        everyone = np.arange(len(scaled))
        if not _leads(scaled + self._gumbel(ids, everyone, position), place, off):
            return False
        lowered = scaled.copy()
        lowered[place] -= np.float32(off)
        return bool((_candidates(lowered, self.params, self.params.top_p * float(np.exp(-off))) == place).any())


@dataclass(frozen=True)
class _GuidedArgmax:
    """The best token that a grammar allows: the best of all, most of the time, and then no mask is needed."""

    grammar: Grammar
    otherwise: Choose

    def __call__(self, node: NodeScores, position: int, emitted: Sequence[int], noise: float) -> int | None:
        if noise == 0 and self.grammar.permits(emitted, node.next_id):
            return node.next_id
        return self.otherwise(node, position, emitted, noise)


def _candidates(scaled: Float32, params: SamplingParams, top_p: float) -> Int64:
    """Places that top-k, top-p and min-p leave, best first where sorting was needed; ties prefer the lower place."""
    kept = np.arange(len(scaled))
    if params.top_k and params.top_k < len(kept):
        kept = np.sort(np.argpartition(-scaled, params.top_k - 1)[: params.top_k])
        least = scaled[kept].min()
        above = np.flatnonzero(scaled > least)
        kept = np.concatenate([above, np.flatnonzero(scaled == least)[: params.top_k - len(above)]])
    if top_p < 1 or params.min_p:
        weights = np.exp((scaled[kept] - scaled[kept].max()).astype(np.float64))
        if top_p < 1:
            # what is below (1 - p) / n of the mass together has less than 1 - p of it: never in the nucleus
            heavy = np.flatnonzero(weights >= (1 - top_p) / len(kept) * weights.sum())
            order = heavy[np.argsort(-weights[heavy], kind="stable")]
            before = np.cumsum(weights[order]) - weights[order]
            order = order[before < top_p * weights.sum()]
            kept, weights = kept[order], weights[order]
        if params.min_p:
            kept = kept[weights >= params.min_p * weights.max()]
    places: Int64 = kept.astype(np.int64)
    return places


def _log_sum_exp(scores: Float32) -> float:
    top = float(scores.max())
    return top + float(np.log(np.exp((scores - np.float32(top)).astype(np.float64)).sum()))
