from __future__ import annotations

import numpy as np
import pytest

from sssd.drafting.store_format import Checksums, Entry
from sssd.drafting.store_plan import LiveOptions, excess_tokens, expiry, merge_plan, rewrite_due
from sssd.errors import DatastoreError

OPTIONS = LiveOptions(head_tokens=4096, segment_tokens=1 << 20, max_tokens=1 << 22, ttl_seconds=100.0)


def entry(n_tokens: int, age: int, dead_tokens: int = 0) -> Entry:
    return Entry("default", True, 0, n_tokens, 10, Checksums(0, 0, 0), 0, age, age, np.zeros((0, 2)), dead_tokens)


def test_nothing_is_merged_before_a_tier_is_full() -> None:
    assert merge_plan([entry(5000, age) for age in range(3)], OPTIONS) == ()


def test_the_oldest_of_a_full_tier_are_merged() -> None:
    entries = [entry(5000, age) for age in (4, 2, 0, 3, 1)]
    assert [e.oldest_ms for e in merge_plan(entries, OPTIONS)] == [0, 1, 2, 3]


def test_the_smallest_full_tier_goes_first() -> None:
    large, small = [entry(70_000, age) for age in range(4)], [entry(5000, age) for age in range(4, 8)]
    assert [e.n_tokens for e in merge_plan(large + small, OPTIONS)] == [5000] * 4


def test_no_merge_passes_the_segment_bound() -> None:
    assert merge_plan([entry(300_000, age) for age in range(4)], OPTIONS) == ()


def test_a_segment_with_many_dead_documents_is_rewritten_alone() -> None:
    rotten = entry(5000, 3, dead_tokens=1250)
    assert merge_plan([entry(5000, 0), rotten, entry(5000, 1)], OPTIONS) == (rotten,)
    assert merge_plan([entry(5000, 3, dead_tokens=1249)], OPTIONS) == ()


def test_merging_ends_and_leaves_few_segments() -> None:
    """A simulation: a segment arrives, then merges run until none is due."""
    entries: list[Entry] = []
    n_sorted = 0
    for age in range(2000):
        entries.append(entry(4500, age))
        while inputs := merge_plan(entries, OPTIONS):
            entries = [e for e in entries if not any(e is i for i in inputs)]
            merged = sum(e.n_tokens for e in inputs)
            n_sorted += merged
            entries.append(entry(merged, min(e.oldest_ms for e in inputs)))
    total = 2000 * 4500
    assert sum(e.n_tokens for e in entries) == total
    assert len(entries) <= total // (1 << 18) + 4 * 4
    assert n_sorted <= 5 * total


def test_the_file_is_rewritten_when_most_of_it_is_garbage() -> None:
    entries = [entry(4_000_000, 0)]
    used = entries[0].n_bytes
    assert not rewrite_due(entries, 2 * used, OPTIONS)
    assert rewrite_due(entries, 2 * used + 10_000, OPTIONS)
    assert not rewrite_due([], 16 << 20, OPTIONS)
    assert rewrite_due([], (16 << 20) + 1, OPTIONS)


def test_too_much_text_is_cut_a_twentieth_below_the_bound() -> None:
    assert excess_tokens(1 << 22, OPTIONS) == 0
    assert excess_tokens((1 << 22) + 1, OPTIONS) == (1 << 22) + 1 - (1 << 22) * 19 // 20


def test_documents_expire_at_their_age_at_the_latest() -> None:
    assert expiry(1000, 100_999, OPTIONS) is None
    assert expiry(1000, 101_000, OPTIONS) == 6000
    assert expiry(None, 101_000, OPTIONS) is None
    assert expiry(0, 10**9, LiveOptions()) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"head_tokens": 10}, "1024 <= head_tokens"),
        ({"head_tokens": 8192, "segment_tokens": 4096}, "head_tokens <= segment_tokens"),
        ({"max_tokens": 1000}, "max_tokens is 1000: give at least 4 head_tokens"),
        ({"ttl_seconds": 0.0}, "ttl_seconds is 0.0"),
        ({"interval_seconds": 2.0}, "interval_seconds"),
        ({"fanout": 1}, "fanout at least 2"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, float], said: str) -> None:
    with pytest.raises(DatastoreError, match=said):
        LiveOptions(**options)
