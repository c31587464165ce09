from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sssd.drafting import datastore
from sssd.drafting.datastore import BuildOptions, Datastore
from sssd.drafting.segments import segment_problems
from sssd.drafting.store_builder import LEAST_MEMORY, Tally, add_documents
from sssd.drafting.store_documents import Document
from sssd.drafting.store_writer import StoreWriter, WriterLock
from sssd.errors import DatastoreError, SpecMismatch
from sssd.types import Source
from tests.helpers.linear_store import LinearStore, continuations, live_documents, random_documents

VOCAB = 6
SMALL = BuildOptions(memory=LEAST_MEMORY, workers=2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "text.store"


def build(path: Path, documents: list[list[int]], **options: bool) -> datastore.BuildReport:
    return datastore.build(path, documents, tokenizer="vocab", vocab_size=VOCAB, **options)


def add_requests(path: Path, documents: list[tuple[int, list[int]]], namespace: str = "default") -> None:
    """Append one segment whose documents carry request ids, as a live datastore's do."""
    with WriterLock(path), StoreWriter.open(path) as writer:
        stream = (Document(np.array(tokens, np.int32), request, 0) for request, tokens in documents)
        add_documents(writer, stream, namespace=namespace, options=SMALL, tally=Tally())


def queries(rng: np.random.Generator) -> Iterator[list[int]]:
    for length in (1, 2, 3, 4, 6):
        for _ in range(8):
            yield rng.integers(0, VOCAB, length).tolist()


def test_search_finds_what_a_scan_of_all_documents_finds(path: Path) -> None:
    rng = np.random.default_rng(0)
    first, second = random_documents(rng, 60, vocab_size=VOCAB), random_documents(rng, 30, vocab_size=VOCAB)
    build(path, first)
    datastore.add(path, second, tokenizer="vocab")
    twin = LinearStore()
    for tokens in first + second:
        twin.add(tokens)
    with Datastore(path, tokenizer="vocab") as store:
        segments = store.segments("default")
        for query in queries(rng):
            expected = twin.continuations(query, 5)
            assert continuations(segments, query, 5) == expected
            result = datastore.search(path, query, limit=10_000, continuation=5)
            assert result.n_matches == len(result.matches) == sum(expected.values())
            assert sorted(tuple(m.continuation.tolist()) for m in result.matches) == sorted(expected.elements())


def test_segments_hold_the_documents_in_order_with_their_boundaries(path: Path) -> None:
    documents = random_documents(np.random.default_rng(1), 50, vocab_size=VOCAB)
    report = build(path, documents)
    with Datastore(path, tokenizer="vocab") as store:
        segments = store.segments("default")
    assert live_documents(segments) == documents
    assert [segment_problems(segment) for segment in segments] == [[]]
    assert segments[0].source is Source.DATASTORE
    assert (report.n_documents, report.n_tokens, report.n_segments) == (50, sum(map(len, documents)), 1)


def test_a_small_memory_bound_makes_several_segments_and_cuts_documents_longer_than_one(path: Path) -> None:
    rng = np.random.default_rng(2)
    capacity = SMALL.segment_tokens(VOCAB)
    long = rng.integers(0, VOCAB, 2 * capacity + 10, dtype=np.int32)
    short = [rng.integers(0, VOCAB, 1000, dtype=np.int32) for _ in range(100)]
    seen: list[tuple[int, int]] = []
    report = datastore.build(
        path,
        [*short, long, *short],
        tokenizer="vocab",
        vocab_size=VOCAB,
        options=SMALL,
        progress=lambda *counts: seen.append(counts),
    )
    assert (report.n_cut, report.n_documents) == (1, 203)
    with Datastore(path, tokenizer="vocab") as store:
        documents = live_documents(store.segments("default"))
        assert max(len(segment.tokens) for segment in store.segments("default")) <= capacity
    assert [len(document) for document in documents[100:103]] == [capacity - 1, capacity - 1, 12]
    assert [*documents[100], *documents[101], *documents[102]] == long.tolist()
    assert report.n_tokens == sum(map(len, documents)) == seen[-1][0] == seen[-1][1]
    assert datastore.inspect(path, verify=True).problems == ()


def test_namespaces_are_kept_apart(path: Path) -> None:
    build(path, [[1, 2, 3]])
    datastore.add(path, [[1, 2, 4]], tokenizer="vocab", namespace="tenant")
    with Datastore(path, tokenizer="vocab") as store:
        assert store.namespaces == ("default", "tenant")
        assert live_documents(store.segments("tenant")) == [[1, 2, 4]]
        with pytest.raises(DatastoreError, match="no namespace 'other': it has default, tenant"):
            store.segments("other")
    assert datastore.search(path, [1, 2]).n_matches == 2
    assert datastore.search(path, [1, 2], namespace="tenant").n_matches == 1
    with pytest.raises(DatastoreError, match="no namespace"):
        datastore.search(path, [1, 2], namespace="other")


def test_erased_documents_are_found_no_more_and_compact_removes_their_bytes(path: Path) -> None:
    rng = np.random.default_rng(3)
    twin = LinearStore()
    for _ in range(3):
        requests = [(int(rng.integers(0, 8)), tokens) for tokens in random_documents(rng, 20, vocab_size=VOCAB)]
        for request, tokens in requests:
            twin.add(tokens, request)
        if not path.exists():
            build(path, [[5]])
            twin.add([5])
        add_requests(path, requests)
    for request in (3, 7, 3, 99):
        assert datastore.erase(path, request) == twin.erase(request)
        for query in queries(rng):
            assert datastore.search(path, query).n_matches == sum(twin.continuations(query, 1).values())
    n_dead = datastore.inspect(path).n_dead
    assert n_dead > 0
    report = datastore.compact(path)
    assert (report.n_removed, report.segments_after) == (n_dead, 1)
    with Datastore(path, tokenizer="vocab") as store:
        assert sorted(live_documents(store.segments("default"))) == sorted(tokens for _, tokens in twin.documents)
        assert datastore.inspect(path, verify=True).n_dead == 0


def test_compact_copies_large_sound_segments_and_merges_the_rest(path: Path) -> None:
    rng = np.random.default_rng(4)
    capacity = SMALL.segment_tokens(VOCAB)
    large = [rng.integers(0, VOCAB, capacity - 1, dtype=np.int32)]
    datastore.build(path, large, tokenizer="vocab", vocab_size=VOCAB, options=SMALL)
    small = random_documents(rng, 10, vocab_size=VOCAB)
    for document in small:
        datastore.add(path, [document], tokenizer="vocab")
    before = datastore.inspect(path)
    report = datastore.compact(path, options=SMALL)
    after = datastore.inspect(path, verify=True)
    assert (report.segments_before, report.segments_after) == (11, 2)
    assert after.problems == ()
    assert after.file_bytes < before.file_bytes
    assert after.sequence > before.sequence
    with Datastore(path, tokenizer="vocab") as store:
        assert live_documents(store.segments("default")) == [large[0].tolist(), *small]


def test_a_reader_sees_a_newer_commit_after_refresh_and_keeps_what_it_has(path: Path) -> None:
    build(path, [[1, 2, 3]])
    with Datastore(path, tokenizer="vocab") as store:
        held = store.segments("default")
        assert not store.refresh()
        datastore.add(path, [[4, 5]], tokenizer="vocab")
        assert len(store.segments("default")) == 1
        assert store.refresh()
        assert live_documents(store.segments("default")) == [[1, 2, 3], [4, 5]]
        datastore.compact(path)
        assert live_documents(store.segments("default")) == [[1, 2, 3], [4, 5]]
        assert store.refresh()
        assert len(store.segments("default")) == 1
        assert live_documents(held) == [[1, 2, 3]]


def test_a_mapped_segment_outlives_its_file(path: Path) -> None:
    large = np.random.default_rng(5).integers(0, VOCAB, 300_000, dtype=np.int32)
    datastore.build(path, [large], tokenizer="vocab", vocab_size=VOCAB)
    with Datastore(path, tokenizer="vocab") as store:
        (segment,) = store.segments("default")
    path.unlink()
    assert np.array_equal(segment.tokens[:-1], large)


def test_a_file_takes_eight_bytes_a_token_beside_its_headers(path: Path) -> None:
    documents = [np.random.default_rng(6).integers(0, VOCAB, 1000, dtype=np.int32) for _ in range(300)]
    datastore.build(path, documents, tokenizer="vocab", vocab_size=VOCAB)
    assert datastore.inspect(path).file_bytes < 8.1 * 300_000 + 64 * 1024


def test_opening_reads_no_text(path: Path) -> None:
    documents = [np.random.default_rng(7).integers(0, VOCAB, 1000, dtype=np.int32)] * 1000
    datastore.build(path, documents, tokenizer="vocab", vocab_size=VOCAB)
    before, times = resident_bytes(), []
    for _ in range(5):
        started = time.perf_counter()
        with Datastore(path, tokenizer="vocab") as store:
            segments = store.segments("default")
        times.append(time.perf_counter() - started)
    assert sum(segment.tokens.nbytes + segment.suffixes.nbytes for segment in segments) > 8_000_000
    assert min(times) < 0.02
    assert resident_bytes() - before < 2_000_000


def resident_bytes() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(fields["VmRSS"].split()[0])


def test_empty_documents_are_counted_and_not_stored(path: Path) -> None:
    assert build(path, [[], [1], [], [2]]).n_empty == 2
    assert datastore.inspect(path).n_documents == 2


def test_build_refuses_to_replace_a_file_unless_forced(path: Path) -> None:
    build(path, [[1]])
    with pytest.raises(DatastoreError, match=r"exists: add to it .* or replace it with --force"):
        build(path, [[2]])
    build(path, [[2]], force=True)
    assert datastore.search(path, [1]).n_matches == 0
    assert datastore.search(path, [2]).n_matches == 1


def test_a_failed_forced_build_leaves_the_old_file_and_nothing_beside_it(path: Path) -> None:
    build(path, [[1]])
    with pytest.raises(DatastoreError, match="token id 6"):
        build(path, [[2], [6]], force=True)
    assert datastore.search(path, [1]).n_matches == 1
    assert sorted(file.name for file in path.parent.iterdir()) == ["text.store", "text.store.lock"]


def test_what_a_killed_writer_left_beside_the_file_is_removed_by_the_next_one(path: Path) -> None:
    build(path, [[1]])
    for name in ("text.store.new", "text.store.new.new"):
        (path.parent / name).write_bytes(b"unfinished")
    datastore.add(path, [[2]], tokenizer="vocab")
    assert sorted(file.name for file in path.parent.iterdir()) == ["text.store", "text.store.lock"]


def test_a_store_of_another_tokenizer_is_refused(path: Path) -> None:
    build(path, [[1]])
    with pytest.raises(SpecMismatch, match="built with the tokenizer vocab, this one is other"):
        Datastore(path, tokenizer="other")
    with pytest.raises(SpecMismatch):
        datastore.add(path, [[1]], tokenizer="other")


@pytest.mark.parametrize("bad", [[6], [-1], [-7], [2**40], [1.5], [[1, 2]]])
def test_ids_outside_the_vocabulary_are_refused_and_nothing_is_left(path: Path, bad: list[int]) -> None:
    with pytest.raises(DatastoreError, match="ids"):
        build(path, [[1, 2], bad])
    assert not path.exists()
    build(path, [[1]])
    with pytest.raises(DatastoreError, match="ids"):
        datastore.add(path, [[1, 2], bad], tokenizer="vocab")
    assert datastore.inspect(path, verify=True).n_documents == 1


def test_separators_in_an_int32_document_are_refused(path: Path) -> None:
    with pytest.raises(DatastoreError, match="token id -1"):
        datastore.build(path, [np.array([1, -1, 2], np.int32)], tokenizer="vocab", vocab_size=VOCAB)


@pytest.mark.parametrize("documents", [[], [[]], [[], []]])
def test_an_empty_corpus_is_refused_and_makes_no_file(path: Path, documents: list[list[int]]) -> None:
    with pytest.raises(DatastoreError, match="no tokens"):
        build(path, documents)
    assert not path.exists()


def test_a_second_writer_is_refused_while_readers_go_on(path: Path) -> None:
    build(path, [[1, 2]])
    with WriterLock(path):
        for write in (
            lambda: datastore.add(path, [[1]], tokenizer="vocab"),
            lambda: datastore.erase(path, 1),
            lambda: datastore.compact(path),
            lambda: build(path, [[1]], force=True),
        ):
            with pytest.raises(DatastoreError, match="being written by another process"):
                write()
        assert datastore.search(path, [1, 2]).n_matches == 1
    datastore.add(path, [[1]], tokenizer="vocab")


def test_bad_options_and_queries_say_what_is_allowed(path: Path) -> None:
    build(path, [[1]])
    with pytest.raises(DatastoreError, match="--memory is 10 bytes: give at least"):
        datastore.add(path, [[1]], tokenizer="vocab", options=BuildOptions(memory=10))
    with pytest.raises(DatastoreError, match="--workers is 0"):
        datastore.add(path, [[1]], tokenizer="vocab", options=BuildOptions(workers=0))
    with pytest.raises(DatastoreError, match="query has no tokens"):
        datastore.search(path, [])
    with pytest.raises(DatastoreError, match="limit is -1"):
        datastore.search(path, [1], limit=-1)
    with pytest.raises(DatastoreError, match="request id -1"):
        datastore.erase(path, -1)
    with pytest.raises(DatastoreError, match="1 to 1024 bytes"):
        datastore.add(path, [[1]], tokenizer="vocab", namespace="")
    with pytest.raises(DatastoreError, match="vocabularies of 1 to"):
        datastore.build(path, [[1]], tokenizer="vocab", vocab_size=1 << 25, force=True)
    with pytest.raises(DatastoreError, match="fingerprint"):
        datastore.build(path, [[1]], tokenizer="", vocab_size=6, force=True)


def test_a_stream_that_fails_half_way_leaves_what_was_committed(path: Path) -> None:
    capacity = SMALL.segment_tokens(VOCAB)

    def stream() -> Iterator[np.ndarray]:
        for _ in range(4):
            yield np.ones(capacity - 1, np.int32)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        datastore.build(path, stream(), tokenizer="vocab", vocab_size=VOCAB, options=SMALL)
    report = datastore.inspect(path, verify=True)
    assert report.n_documents >= 1
    assert report.problems == ()
    assert path.stat().st_size == report.file_bytes
    assert datastore.add(path, [[1]], tokenizer="vocab").n_documents == 1
