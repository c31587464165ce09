from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sssd.drafting import datastore
from sssd.drafting.segments import Segment
from sssd.drafting.store_plan import LiveOptions
from tests.helpers.linear_store import LinearStore, continuations, live_documents, random_documents
from tests.helpers.live_store import SMALL, VOCAB, Clock, ids, opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "live.store"


def assert_equals_twin(segments: tuple[Segment, ...], twin: LinearStore, rng: np.random.Generator) -> None:
    for length in (1, 2, 3, 5):
        for _ in range(4):
            query = rng.integers(0, VOCAB, length).tolist()
            assert continuations(segments, query, 4) == twin.continuations(query, 4)


def test_what_is_found_is_what_a_scan_finds_through_seals_merges_erasures_and_restarts(path: Path) -> None:
    rng = np.random.default_rng(0)
    twins = {"a": LinearStore(), "b": LinearStore()}
    number = 0
    for _ in range(3):
        with opened(path) as live:
            for _ in range(6):
                for tokens in random_documents(rng, 60, vocab_size=VOCAB):
                    namespace = "ab"[number % 2]
                    live.remember(number // 3, namespace, ids(tokens))
                    twins[namespace].add(tokens, number // 3)
                    number += 1
                live.flush()
                gone = int(rng.integers(0, number // 3 + 2))
                assert live.erase(gone) == sum(twin.erase(gone) for twin in twins.values())
            live.synchronize()
            for namespace, twin in twins.items():
                assert_equals_twin(live.segments(namespace), twin, rng)
            holdings = live.stats().holdings
            assert holdings.n_documents == sum(len(twin.documents) for twin in twins.values())
            assert holdings.n_segments < 16
            assert live.stats().n_jobs > 0
    assert datastore.inspect(path, verify=True).problems == ()


def test_the_oldest_documents_go_when_there_are_too_many_tokens(path: Path) -> None:
    clock = Clock()
    options = LiveOptions(head_tokens=1024, segment_tokens=4096, max_tokens=10_000, interval_seconds=0.01)
    rng = np.random.default_rng(2)
    documents = [rng.integers(0, VOCAB, 50).tolist() for _ in range(600)]
    with opened(path, options, clock) as live:
        for number, tokens in enumerate(documents):
            live.remember(number, "ab"[number % 2], ids(tokens))
            clock.now += 1
            if number % 10 == 9:
                live.flush()
        live.synchronize()
        kept = live_documents(live.segments("a")) + live_documents(live.segments("b"))
        assert live.stats().holdings.n_tokens <= 10_000
        assert len(kept) > 120
        assert sorted(kept) == sorted(documents[-len(kept) :])


def test_the_file_stays_of_the_size_of_what_it_holds(path: Path) -> None:
    rng = np.random.default_rng(3)
    with opened(path, replace(SMALL, garbage_bytes=1 << 16)) as live:
        documents = [rng.integers(0, VOCAB, 100).tolist() for _ in range(80)]
        for number, tokens in enumerate(documents):
            live.remember(number, "a", ids(tokens))
            live.flush()
        live.synchronize()
        assert live.stats().holdings.file_bytes < 3 * (1 << 16) + 3 * 8 * 8_080
        assert sorted(live_documents(live.segments("a"))) == sorted(documents)
    assert datastore.inspect(path, verify=True).problems == ()
    assert sorted(file.name for file in path.parent.iterdir()) == ["live.store", "live.store.lock"]


def test_many_namespaces_do_not_fill_the_file_with_journals(path: Path) -> None:
    with opened(path) as live:
        for number in range(120):
            live.remember(number, f"tenant {number % 20}", ids([1, 2, 3]))
            live.flush()
        entries = datastore.inspect(path).segments
        assert len(entries) <= 20 + 64 + 1
        for name in live.namespaces:
            assert live_documents(live.segments(name)) == [[1, 2, 3]] * 6
    with opened(path) as live:
        assert live.stats().holdings.n_documents == 120
