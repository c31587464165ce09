"""The two plain chain drafters against their definitions."""

from __future__ import annotations

import random

import numpy as np
import pytest

from sssd.drafting.base import Drafter
from sssd.drafting.simple import AcceptanceRates, MaxGram, PromptLookup
from sssd.errors import RequestError
from sssd.types import DraftJob, DraftOptions, DraftTree
from tests.helpers.streams import random_tokens, tokens


def _draft(drafter: Drafter, budget: int) -> DraftTree:
    return drafter.propose([DraftJob(1, budget)])[0]


def _max_gram(text: list[int], budget: int) -> list[int]:
    """Longest suffix with an earlier occurrence, the earliest one; copied, and copied on from the copy."""
    for n in range(len(text) - 1, 0, -1):
        for end in range(n, len(text)):
            if text[end - n : end] == text[-n:]:
                out = list(text)
                for i in range(budget):
                    out.append(out[end + i])
                return out[len(text) :]
    return []


def _lookup(text: list[int], budget: int, max_ngram: int) -> list[int]:
    for n in range(min(max_ngram, len(text)), 0, -1):
        for end in range(n, len(text)):
            if text[end - n : end] == text[-n:]:
                return text[end : end + budget]
    return []


@pytest.mark.parametrize("seed", range(10))
def test_both_equal_their_definitions_on_random_streams(seed: int) -> None:
    draw = random.Random(seed)
    vocab = draw.choice([1, 2, 3, 8])
    gram, lookup = MaxGram(), PromptLookup(max_ngram=3)
    text = random_tokens(draw, draw.randrange(30), vocab)
    gram.begin(1, text, DraftOptions())
    lookup.begin(1, text, DraftOptions())
    for _ in range(30):
        budget = draw.randrange(12)
        a, b = _draft(gram, budget), _draft(lookup, budget)
        assert a.tokens.tolist() == _max_gram(text.tolist(), budget)
        assert b.tokens.tolist() == _lookup(text.tolist(), budget, 3)
        new = random_tokens(draw, draw.randrange(1, 4), vocab)
        gram.accept(1, new, a)
        lookup.accept(1, new, b)
        text = np.concatenate([text, new])
        assert gram.check() == lookup.check() == []


def test_a_chain_is_a_chain_with_falling_scores() -> None:
    gram = MaxGram()
    gram.begin(1, tokens(1, 2, 3, 4, 1, 2), DraftOptions())
    tree = _draft(gram, 6)
    assert tree.tokens.tolist() == [3, 4, 1, 2, 3, 4]
    assert tree.parents.tolist() == [-1, 0, 1, 2, 3, 4]
    assert np.all(np.diff(tree.scores) <= 0)
    assert 0 < tree.scores[0] < 1


def test_a_bigram_table_fills_what_no_match_gives() -> None:
    table = np.array([1, 2, -1], np.int32)
    gram = MaxGram(bigram=table)
    gram.begin(1, tokens(0), DraftOptions())
    assert _draft(gram, 5).tokens.tolist() == [1, 2]


def test_rates_follow_the_verdicts() -> None:
    rates = AcceptanceRates()
    assert rates.rate(1) < rates.rate(20)
    for _ in range(2000):
        rates.learn(1, True)
        rates.learn(20, False)
    assert rates.rate(1) > 0.95
    assert rates.rate(20) < 0.05


def test_mistakes_are_refused() -> None:
    gram = MaxGram()
    gram.begin(1, tokens(1), DraftOptions())
    with pytest.raises(RequestError, match="in use"):
        gram.begin(1, tokens(1), DraftOptions())
    with pytest.raises(RequestError, match="max_ngram is 0"):
        PromptLookup(max_ngram=0)
