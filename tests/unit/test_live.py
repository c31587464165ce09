from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from sssd.drafting import datastore
from sssd.drafting.segments import Segment
from sssd.drafting.store_jobs import MergeJob
from sssd.drafting.store_keeper import Keeper
from sssd.drafting.store_live import LiveDatastore
from sssd.drafting.store_plan import LiveOptions
from sssd.drafting.store_writer import StoreWriter
from sssd.errors import DatastoreError, SpecMismatch
from sssd.types import Source
from tests.helpers.linear_store import live_documents, random_documents
from tests.helpers.live_store import SMALL, VOCAB, Clock, ids, opened, remember_all


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "live.store"


def test_a_finished_request_is_searchable_within_a_second(path: Path) -> None:
    published = threading.Event()
    with opened(path, LiveOptions()) as live:
        live.subscribe(lambda namespace, segments: published.set())
        live.remember(1, "a", ids([1, 2, 3]))
        assert published.wait(1.0)
        assert live_documents(live.segments("a")) == [[1, 2, 3]]
        assert live.segments("a")[0].source is Source.LIVE


def test_remember_does_not_wait_for_the_keeper(path: Path) -> None:
    gate = threading.Event()
    with opened(path) as live:
        live.subscribe(lambda namespace, segments: (gate.wait(10), None)[1])
        live.remember(0, "a", ids([1, 2]))
        time.sleep(0.05)
        started = time.perf_counter()
        for number in range(1, 1000):
            live.remember(number, "a", ids([1, 2]))
            assert live.segments("b") == ()
        assert time.perf_counter() - started < 1.0
        gate.set()
        live.flush()
        assert len(live_documents(live.segments("a"))) == 1000


def test_another_process_reads_what_was_persisted(path: Path) -> None:
    documents = random_documents(np.random.default_rng(1), 100, vocab_size=VOCAB)
    with opened(path) as live:
        remember_all(live, documents[:50])
        live.flush()
        with datastore.Datastore(path, tokenizer="vocab") as store:
            assert sorted(live_documents(store.segments("a"))) == sorted(documents[:50])
            remember_all(live, documents[50:], 50)
            live.synchronize()
            assert store.refresh()
            assert sorted(live_documents(store.segments("a"))) == sorted(documents)


def test_subscribers_are_told_what_is_there_and_every_change(path: Path) -> None:
    told: dict[str, tuple[Segment, ...]] = {}
    with opened(path) as live:
        live.remember(1, "a", ids([1, 2]))
        live.flush()
        live.subscribe(told.__setitem__)
        assert live_documents(told["a"]) == [[1, 2]]
        live.remember(2, "b", ids([3]))
        live.flush()
        assert live_documents(told["b"]) == [[3]]
        live.erase(1)
        assert live_documents(told["a"]) == []
        assert live.namespaces == ("a", "b")


def test_a_segment_that_did_not_change_is_published_as_the_same_object(path: Path) -> None:
    with opened(path) as live:
        live.remember(0, "a", np.ones(2000, np.int32))
        live.flush()
        (sealed,) = live.segments("a")
        live.remember(1, "a", ids([1, 2]))
        live.flush()
        assert live.segments("a")[0] is sealed
        live.erase(0)
        assert all(segment is not sealed for segment in live.segments("a"))


def test_documents_go_when_their_time_is_over(path: Path) -> None:
    clock = Clock()
    options = LiveOptions(head_tokens=1024, segment_tokens=16_384, interval_seconds=0.01, ttl_seconds=100.0)
    with opened(path, options, clock) as live:
        remember_all(live, [[1] * 10] * 200)
        live.synchronize()
        clock.now += 50
        remember_all(live, [[2] * 10] * 20, 200)
        live.flush()
        clock.now += 49
        live.flush()
        assert live.stats().holdings.n_documents == 220
        clock.now += 1
        live.flush()
        assert live_documents(live.segments("a")) == [[2] * 10] * 20
        clock.now += 60
    with opened(path, options, clock) as live:
        live.flush()
        assert live_documents(live.segments("a")) == []


def test_documents_erased_while_they_are_merged_stay_erased(path: Path) -> None:
    rng = np.random.default_rng(4)
    documents = [rng.integers(0, VOCAB, 99).tolist() for _ in range(60)]
    with opened(path, LiveOptions(head_tokens=1024, interval_seconds=0.01, fanout=9)) as live:
        for first in range(0, 60, 12):
            remember_all(live, documents[first : first + 12], first)
            live.flush()
    with StoreWriter.open(path) as writer:
        published: dict[str, tuple[Segment, ...]] = {}
        keeper = Keeper(writer, SMALL, published.__setitem__)
        job = keeper.next_job()
        assert isinstance(job, MergeJob)
        gone = int(job.payloads[0].documents["request_id"][2])
        assert keeper.erase(gone) == 1
        keeper.take_over(job.run())
        kept = [tokens for number, tokens in enumerate(documents) if number != gone]
        assert sorted(live_documents(published["a"])) == sorted(kept)
        assert keeper.check() == []


def test_a_full_disk_keeps_text_searchable_and_is_made_good_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, full = os.pwrite, [False]

    def pwrite(fd: int, data: memoryview, offset: int) -> int:
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with LiveDatastore(path, tokenizer="vocab", vocab_size=VOCAB, options=SMALL) as live:
        live.remember(0, "a", ids([1, 2]))
        live.flush()
        full[0] = True
        live.remember(1, "a", ids([3, 4]))
        with pytest.raises(DatastoreError, match="No space left"):
            live.flush()
        assert live_documents(live.segments("a")) == [[1, 2], [3, 4]]
        assert "No space left" in live.check()[0]
        assert live.stats().holdings.n_unsaved == 1
        with pytest.raises(DatastoreError, match="No space left"):
            live.erase(0)
        remember_all(live, [[5] * 20] * 600, 2)
        with pytest.raises(DatastoreError, match="No space left"):
            live.flush()
        assert live.stats().holdings.n_lost > 0
        full[0] = False
        live.flush()
        assert live.check() == []
        assert "No space left" in str(live.stats().last_failure)
        holdings = live.stats().holdings
        assert holdings.n_unsaved == 0
        assert holdings.n_documents == 602 - holdings.n_lost
    with opened(path) as live:
        assert live.stats().holdings.n_documents == holdings.n_documents


def test_a_document_with_ids_outside_the_vocabulary_is_refused_alone(path: Path) -> None:
    with opened(path) as live:
        live.remember(0, "a", ids([1, VOCAB]))
        live.remember(1, "a", ids([1, -1]))
        live.remember(2, "a", ids([]))
        live.remember(3, "a", ids([1, 2]))
        live.flush()
        assert live_documents(live.segments("a")) == [[1, 2]]
        assert live.stats().holdings.n_refused == 2


def test_a_document_longer_than_a_segment_is_cut(path: Path) -> None:
    long = np.random.default_rng(5).integers(0, VOCAB, 40_000, dtype=np.int32)
    with opened(path) as live:
        live.remember(0, "a", long)
        live.synchronize()
        documents = live_documents(live.segments("a"))
        assert sum(map(len, documents)) == 40_000
        assert max(map(len, documents)) == 16_383
        assert live.erase(0) == 3


def test_request_ids_can_be_counted_on_after_a_restart(path: Path) -> None:
    with opened(path) as live:
        assert live.stats().holdings.largest_request is None
        live.remember(41, "a", ids([1]))
    with opened(path) as live:
        assert live.stats().holdings.largest_request == 41


def test_two_live_datastores_on_one_file_are_refused(path: Path) -> None:
    with opened(path), pytest.raises(DatastoreError, match="being written by another process"):
        LiveDatastore(path, tokenizer="vocab", vocab_size=VOCAB)


def test_a_file_of_another_tokenizer_is_refused_and_released(path: Path) -> None:
    datastore.build(path, [[1]], tokenizer="vocab", vocab_size=VOCAB)
    with pytest.raises(SpecMismatch):
        LiveDatastore(path, tokenizer="other", vocab_size=VOCAB)
    with opened(path) as live:
        assert live_documents(live.segments("default")) == [[1]]


def test_closing_twice_is_harmless_and_keeps_the_last_text(path: Path) -> None:
    live = LiveDatastore(path, tokenizer="vocab", vocab_size=VOCAB)
    live.remember(0, "a", ids([1, 2]))
    live.close()
    live.close()
    assert datastore.search(path, [1, 2]).n_matches == 1
