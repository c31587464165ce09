from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sssd.drafting.segments import SEPARATOR, Segment, no_dead, segment_problems
from sssd.drafting.store_suffix import suffix_array
from sssd.errors import DatastoreError
from sssd.types import Int32, Source


def text(rng: np.random.Generator, n: int, vocab_size: int, *, ids: int) -> Int32:
    """Random documents that use `ids` different ids, spread over the vocabulary."""
    used = np.sort(rng.choice(vocab_size, ids, replace=False)).astype(np.int32)
    tokens = used[rng.integers(0, ids, n)]
    tokens[rng.random(n) < 0.1] = SEPARATOR
    tokens[-1] = SEPARATOR
    return tokens


def sorted_by_hand(tokens: Int32) -> list[list[int]]:
    """What follows each position, up to the end of the text, sorted."""
    whole = tokens.tolist()
    return sorted(whole[at:] for at in range(len(whole)) if whole[at] != SEPARATOR)


@pytest.mark.parametrize("vocab_size", [300, 49_152, 65_535, 65_536, 200_000])
def test_suffixes_stand_in_the_order_of_what_follows_them(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    for n in (1, 2, 3, 50, 400):
        tokens = text(rng, n, vocab_size, ids=min(vocab_size, 20))
        suffixes = suffix_array(tokens, vocab_size=vocab_size)
        assert [tokens.tolist()[at:] for at in suffixes.tolist()] == sorted_by_hand(tokens)


def test_more_than_65535_different_ids_are_sorted_as_well() -> None:
    rng = np.random.default_rng(1)
    tokens = np.append(rng.permutation(140_000).astype(np.int32), SEPARATOR).astype(np.int32)
    suffixes = suffix_array(tokens, vocab_size=140_000)
    assert np.array_equal(tokens[suffixes], np.arange(140_000))


def test_a_sorted_segment_has_no_problems() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        tokens = text(rng, 300, 1000, ids=4)
        segment = Segment(tokens, suffix_array(tokens, vocab_size=1000), no_dead(), Source.LIVE)
        assert segment_problems(segment) == []


def test_the_checker_sees_each_broken_rule() -> None:
    tokens = np.array([5, 6, 5, 7, SEPARATOR, 5, 6, SEPARATOR], np.int32)
    sound = Segment(tokens, suffix_array(tokens, vocab_size=10), no_dead(), Source.LIVE)
    swapped = sound.suffixes.copy()
    swapped[[0, -1]] = swapped[[-1, 0]]
    open_end = np.append(tokens[:-1], np.int32(3)).astype(np.int32)
    assert "order" in segment_problems(replace(sound, suffixes=swapped))[0]
    assert "each once" in segment_problems(replace(sound, suffixes=sound.suffixes[:-1]))[0]
    assert "each once" in segment_problems(replace(sound, suffixes=np.full_like(sound.suffixes, 0)))[0]
    assert "no separator" in segment_problems(replace(sound, tokens=open_end))[0]
    assert "dead ranges" in segment_problems(replace(sound, dead=np.array([[5, 9]])))[0]
    assert "dead ranges" in segment_problems(replace(sound, dead=np.array([[5, 8], [0, 5]])))[0]
    assert "negative" in segment_problems(replace(sound, tokens=np.where(tokens == 7, -2, tokens).astype(np.int32)))[0]


@pytest.mark.parametrize("bad", [10, 2**31 - 1, -2])
def test_an_id_outside_the_vocabulary_is_refused(bad: int) -> None:
    with pytest.raises(DatastoreError, match=f"token id {bad} .* ids 0 to 9"):
        suffix_array(np.array([1, bad, SEPARATOR], np.int32), vocab_size=10)
