"""What the retrieval drafter promises: what is found, when, from whom, and what is refused."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from sssd import _core
from sssd.drafting.retrieval import Retrieval, RetrievalConfig
from sssd.errors import RequestError, SssdError
from sssd.types import DraftJob, DraftOptions, Int32, Source
from tests.helpers.streams import paths, random_tokens, segment, tokens


class _Notes:
    def __init__(self) -> None:
        self.kept: list[tuple[int, str, list[int]]] = []

    def remember(self, request_id: int, namespace: str, tokens: Int32) -> None:
        self.kept.append((request_id, namespace, tokens.tolist()))


def _begun(prompt: Int32, options: DraftOptions | None = None, drafter: Retrieval | None = None) -> Retrieval:
    drafter = drafter or Retrieval()
    drafter.begin(1, prompt, options or DraftOptions())
    return drafter


def _chain(drafter: Retrieval, budget: int = 4) -> list[int]:
    return drafter.propose([DraftJob(1, budget)])[0].tokens.tolist()


def test_a_committed_token_is_searchable_at_the_next_step() -> None:
    drafter = _begun(tokens(1, 2, 3))
    assert _chain(drafter) == []
    tree = drafter.propose([DraftJob(1, 4)])[0]
    drafter.accept(1, tokens(9, 3), tree)  # 3 came before, and 9 follows it
    assert _chain(drafter)[:2] == [9, 3]


def test_the_longest_match_is_followed_as_deep_as_the_budget() -> None:
    text = list(range(100, 160))
    drafter = _begun(tokens(*text, 7, *text[:12]))
    assert _chain(drafter, 31) == text[12 : 12 + 31]


def test_a_copy_goes_on_behind_the_place_copied_last() -> None:
    # Every item of a list begins with 7; what stands between the items of the copy is new each time.
    drafter = Retrieval()
    drafter.begin(1, tokens(*(t for i in range(30) for t in (7, 100 + i)), 7), DraftOptions())
    copied = []
    for i in range(20):
        tree = drafter.propose([DraftJob(1, 1)])[0]
        copied.append(int(tree.tokens[0]))
        drafter.accept(1, tokens(100 + i, 50 + i, 7), tree)
    assert copied[10:] == [100 + i for i in range(10, 20)]


def test_a_tree_handed_out_stays_as_it_is() -> None:
    drafter = Retrieval()
    drafter.begin(1, tokens(1, 2, 3, 4, 1), DraftOptions())
    drafter.begin(2, tokens(5, 6, 5, 7, 5), DraftOptions())
    kept = drafter.propose([DraftJob(1, 3)])[0]
    for budget in (1, 2, 3, 9) * 200:
        assert len(drafter.propose([DraftJob(2, budget)])[0]) == min(budget, 6)
    assert kept.tokens.tolist() == [2, 3, 4]
    assert kept.parents.tolist() == [-1, 0, 1]


def test_nothing_is_drafted_across_a_document_boundary() -> None:
    drafter = Retrieval()
    drafter.publish("default", [segment([tokens(1, 2, 3), tokens(4, 5)])])
    assert _chain(_begun(tokens(1, 2), drafter=drafter)) == [3]


def test_nothing_is_drafted_from_a_dead_range() -> None:
    drafter = Retrieval()
    drafter.publish("default", [segment([tokens(1, 2, 3), tokens(1, 2, 5)], dead=[(0, 4)])])
    assert _chain(_begun(tokens(1, 2), drafter=drafter)) == [5]


def test_the_prediction_is_drafted_before_anything_was_written() -> None:
    drafter = _begun(tokens(1, 2), DraftOptions(prediction=tokens(7, 8, 9)))
    tree = drafter.propose([DraftJob(1, 8)])[0]
    assert tree.tokens.tolist() == [7, 8, 9]
    assert set(tree.source.tolist()) == {Source.PREDICTION}


def test_the_prediction_is_found_again_after_an_edit() -> None:
    drafter = _begun(tokens(1, 2), DraftOptions(prediction=tokens(7, 8, 9, 10, 11, 12)))
    drafter.accept(1, tokens(7, 99, 9, 10), drafter.propose([DraftJob(1, 4)])[0])
    assert _chain(drafter)[:2] == [11, 12]


def test_a_request_drafts_only_from_the_namespaces_it_names() -> None:
    drafter = Retrieval()
    drafter.publish("mine", [segment([tokens(1, 2, 3)])])
    drafter.publish("theirs", [segment([tokens(1, 2, 4)], Source.LIVE)])
    drafter.begin(1, tokens(1, 2), DraftOptions(namespaces=("mine",)))
    drafter.begin(2, tokens(1, 2), DraftOptions(namespaces=("mine", "theirs")))
    drafter.begin(3, tokens(1, 2), DraftOptions(namespaces=()))
    one, both, none = drafter.propose([DraftJob(i, 4) for i in (1, 2, 3)])
    assert paths(one) == [(3,)]
    assert sorted(zip(paths(both), both.source.tolist(), strict=True)) == [
        ((3,), Source.DATASTORE),
        ((4,), Source.LIVE),
    ]
    assert len(none) == 0


def test_an_unknown_namespace_is_refused_with_those_there_are() -> None:
    with pytest.raises(RequestError, match=r"no namespace 'x': there are default"):
        _begun(tokens(1), DraftOptions(namespaces=("x",)))


def test_an_id_in_use_is_refused_and_free_after_its_end() -> None:
    drafter = _begun(tokens(1))
    with pytest.raises(RequestError, match="in use"):
        drafter.begin(1, tokens(2), DraftOptions())
    drafter.end(1)
    drafter.begin(1, tokens(2), DraftOptions())


def test_finished_text_goes_to_the_memory_unless_the_request_opted_out() -> None:
    notes = _Notes()
    drafter = Retrieval(memory=notes)
    for request_id, remember in ((1, True), (2, False)):
        drafter.begin(request_id, tokens(1, 2, 3, 4, 5), DraftOptions(namespaces=("default",), remember=remember))
        drafter.accept(request_id, tokens(6, 7), drafter.propose([DraftJob(request_id, 2)])[0])
        drafter.end(request_id)
    assert notes.kept == [(1, "default", [3, 4, 5, 6, 7])]


def test_a_first_request_may_found_the_namespace_it_is_remembered_in() -> None:
    drafter = Retrieval(memory=_Notes())
    drafter.begin(1, tokens(1), DraftOptions(namespaces=("new",)))
    with pytest.raises(RequestError, match="no namespace"):
        drafter.begin(2, tokens(1), DraftOptions(namespaces=("newer",), remember=False))


def test_a_long_prompt_is_indexed_aside_and_tokens_committed_meanwhile_are_kept() -> None:
    draw = random.Random(0)
    prompt = random_tokens(draw, 60_000, 1000)
    aside, here = Retrieval(RetrievalConfig(background_from=1)), Retrieval(RetrievalConfig(background_from=1 << 20))
    for drafter in (aside, here):
        _begun(prompt, drafter=drafter)
        drafter.accept(1, prompt[:40], drafter.propose([DraftJob(1, 0)])[0])
    aside.settle()
    assert _chain(aside, 31) == _chain(here, 31) == prompt[40:71].tolist()
    assert aside.check() == []


def test_a_request_may_end_while_it_is_still_being_indexed() -> None:
    drafter = Retrieval(RetrievalConfig(background_from=1))
    for request_id in range(20):
        drafter.begin(request_id, np.zeros(2000, np.int32), DraftOptions())
        drafter.end(request_id)
    drafter.settle()


def test_segments_are_replaced_while_others_draft() -> None:
    draw = random.Random(5)
    drafter = Retrieval(RetrievalConfig(n_threads=2, rows_per_thread=1))
    sets = [[segment([random_tokens(draw, 300, 4)], Source.LIVE)] for _ in range(3)]
    for i in range(8):
        drafter.begin(i, random_tokens(draw, 50, 4), DraftOptions())
    stop = threading.Event()

    def publish() -> None:
        while not stop.is_set():
            for segments in sets:
                drafter.publish("default", segments)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        for _ in range(300):
            assert all(len(tree) == 7 for tree in drafter.propose([DraftJob(i, 7) for i in range(8)]))
    finally:
        stop.set()
        thread.join()


def test_a_wider_or_larger_batch_than_before_is_drafted_whole() -> None:
    text = list(range(50))
    drafter = Retrieval()
    for i in range(5):
        drafter.begin(i, tokens(*text, 0), DraftOptions())
    assert [len(t) for t in drafter.propose([DraftJob(i, 40) for i in range(5)])] == [40] * 5
    assert drafter.propose([]) == []


def test_memory_is_reported_and_bounded_by_the_text() -> None:
    drafter = _begun(tokens(1, 2, 3))
    drafter.end(1)
    before = drafter.memory_bytes()
    drafter.begin(1, np.arange(50_000, dtype=np.int32), DraftOptions())
    drafter.settle()
    used = drafter.memory_bytes() - before
    assert 50_000 * 24 < used < 50_000 * 276
    drafter.end(1)
    assert drafter.memory_bytes() == before


def test_a_damaged_index_is_seen_by_check() -> None:
    drafter = _begun(tokens(1, 2, 1, 2, 1))
    assert drafter.check() == []
    drafter._core.plant_fault(1)
    assert any("chain" in problem for problem in drafter.check())


def test_close_drops_all_segments_and_may_be_called_twice() -> None:
    drafter = Retrieval()
    drafter.publish("default", [segment([tokens(1, 2, 3)])])
    _begun(tokens(1, 2), drafter=drafter)
    drafter.close()
    drafter.close()
    assert _chain(drafter) == []


def test_a_value_out_of_range_is_refused_by_name() -> None:
    with pytest.raises(SssdError, match="n_threads is 0"):
        RetrievalConfig(n_threads=0)


def _native(text: list[int], suffixes: list[int], dead: list[list[int]] | None = None) -> _core.Segment:
    ranges = np.array(dead or [], np.int64).reshape(-1, 2)
    return _core.Segment(np.array(text, np.int32), np.array(suffixes, np.int32), ranges, int(Source.LIVE))


def test_a_segments_interval_equals_a_linear_scan() -> None:
    draw = random.Random(1)
    for _ in range(20):
        vocab = draw.choice([2, 4, 30])
        made = segment([random_tokens(draw, draw.randrange(1, 60), vocab) for _ in range(4)])
        native = _core.Segment(made.tokens, made.suffixes, made.dead, int(made.source))
        text, suffixes = made.tokens.tolist(), made.suffixes.tolist()
        for n in (1, 2, 3, 5, 2, 1):  # the second time from hints
            query = random_tokens(draw, n, vocab)
            matching = [i for i, p in enumerate(suffixes) if text[p : p + n] == query.tolist()]
            first, last = native.find(query)
            assert list(range(first, last)) == matching
        assert native.check() == []


@pytest.mark.parametrize(
    ("suffixes", "problem"), [([1, 0, 9], "outside"), ([0, 1, 2], "separator"), ([1, 0], "out of order")]
)
def test_a_damaged_segment_is_told_and_harmless(suffixes: list[int], problem: str) -> None:
    native = _native([1, 2, -1], suffixes)
    assert any(problem in line for line in native.check())
    for query in (tokens(1), tokens(2), tokens(1, 2), tokens(2, 2, 2)):
        native.find(query)


@pytest.mark.parametrize(
    ("text", "suffixes", "dead", "problem"),
    [
        ([1, 2], [0, 1], [], "separator"),
        ([1, -1], [0, 0, 0], [], "more suffixes"),
        ([1, -1], [0], [[1, 2], [0, 1]], "sorted"),
    ],
)
def test_arrays_that_are_no_segment_are_refused(
    text: list[int], suffixes: list[int], dead: list[list[int]], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        _native(text, suffixes, dead)
