"""The replay's count, its sets and its records."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sssd.bench.replay import Pair, ReplaySet, accepted_path, load_set, replay
from sssd.bench.replay_files import open_documents, open_store, replay_files
from sssd.drafting import datastore
from sssd.drafting.base import NullDrafter
from sssd.drafting.simple import MaxGram
from sssd.errors import SssdError
from sssd.types import DraftTree, Source
from tests.helpers.streams import tokens


def _encode(text: str) -> list[int]:
    return [ord(c) for c in text]


def _set(*pairs: tuple[list[int], list[int]]) -> ReplaySet:
    return ReplaySet("toy", tuple(Pair(tokens(*p), tokens(*a)) for p, a in pairs))


def test_plain_decoding_takes_a_step_a_token() -> None:
    record = replay(NullDrafter(), _set(([1], [2, 3, 4]), ([5], [6])), budget=3, name="none")
    assert (record.n_tokens, record.n_steps, record.tokens_per_step) == (4, 4, 1.0)
    assert record.accepted_lengths == (4, 0, 0, 0)


def test_steps_and_nodes_are_counted_by_hand() -> None:
    # 1 2 3 1 2 | 3 1 2 9: Max-Gram copies 3 1 2 (right), then the 9 is the target's own; one step, three accepted.
    record = replay(MaxGram(), _set(([1, 2, 3, 1, 2], [3, 1, 2, 9])), budget=3, name="maxgram")
    assert (record.n_steps, record.tokens_per_step) == (1, 4.0)
    assert record.drafted[Source.CONTEXT] == record.accepted[Source.CONTEXT] == 3
    assert record.accepted_lengths == (0, 0, 0, 1)


def test_the_accepted_path_is_the_longest_that_the_answer_follows() -> None:
    tree = DraftTree(tokens(1, 2, 5, 3), tokens(-1, 0, -1, 1), np.zeros(4, np.float32), np.zeros(4, np.uint8))
    assert accepted_path(tree, [1, 2, 3, 4], 0) == [0, 1, 3]
    assert accepted_path(tree, [9, 5], 1) == [2]
    assert accepted_path(tree, [9], 0) == []


def test_records_of_every_form_become_pairs(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    lines = [
        {"prompt": "ab", "answer": "c"},
        {"turns": ["a", "d"], "answer": ["b", "e"]},
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
    ]
    path.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    pairs = [("".join(map(chr, p)), "".join(map(chr, a))) for p, a in load_set(path, _encode).pairs]
    assert pairs == [("ab", "c"), ("a", "b"), ("abd", "e"), ("x", "y")]
    assert len(load_set(path, _encode, limit=1).pairs) == 1


def test_a_token_set_is_replayed_with_its_own_documents_and_live(tmp_path: Path) -> None:
    path = tmp_path / "toy.npz"
    offsets = np.array([0, 2, 4])
    np.savez(
        path,
        P=tokens(1, 2, 1, 2),
        po=offsets,
        A=tokens(3, 4, 5, 6, 3, 4, 5, 6),
        ao=2 * offsets,
        S=tokens(0, 2, 3, 4, 0, 9),
        so=np.array([0, 4, 6]),
    )
    files = [path]
    alone = replay_files(files, budgets=[3])[0]
    stored = replay_files(files, budgets=[3], store=open_documents(path), store_name="own")[0]
    live = replay_files(files, budgets=[3], live=True)[0]
    assert alone.n_tokens == stored.n_tokens == 8
    assert stored.n_steps < alone.n_steps
    assert live.n_steps < alone.n_steps
    assert stored.accepted[Source.DATASTORE] > 0
    assert live.accepted[Source.LIVE] > 0
    assert (alone.datastore, stored.datastore) == (None, "own")
    keys = {
        "set",
        "drafter",
        "budget",
        "datastore",
        "tokens_per_step",
        "propose_us_p50",
        "propose_us_p99",
        "accept_us_p50",
        "drafted",
        "accepted",
    }
    told = stored.to_json()
    assert keys <= set(told)
    assert told["accepted"]["datastore"] == stored.accepted[Source.DATASTORE]
    json.dumps(told)


def test_a_store_without_documents_is_refused(tmp_path: Path) -> None:
    path, none = tmp_path / "bare.npz", np.zeros(1, np.int64)
    np.savez(path, P=tokens(1), po=np.array([0, 1]), A=tokens(2), ao=np.array([0, 1]), S=tokens(), so=none)
    with pytest.raises(SssdError, match=r"bare\.npz brings no documents"):
        open_documents(path)


def test_a_store_is_a_datastore_file_or_a_token_set(tmp_path: Path) -> None:
    token_set, file = tmp_path / "set.npz", tmp_path / "file.store"
    offsets = np.array([0, 1])
    np.savez(token_set, P=tokens(1), po=offsets, A=tokens(2), ao=offsets, S=tokens(5, 6, 7), so=np.array([0, 2, 3]))
    datastore.build(file, [[5, 6], [7]], tokenizer="t", vocab_size=8)
    stores = [open_store(path, "t") for path in (token_set, file)]
    for store in stores:
        assert store.namespaces == ("default",)
        assert [s.tokens.tolist() for s in store.segments("default")] == [[5, 6, -1, 7, -1]]
        store.close()
    with pytest.raises(SssdError, match="tokenizer"):
        open_store(file, "another")


def test_the_authors_rules_and_the_chains_replay_as_well(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps({"prompt": "abcabcab", "answer": "cabcab"}), "utf-8")
    for kwargs in ({"rules": "sssd"}, {"drafter": "maxgram"}, {"drafter": "lookup"}):
        record = replay_files([path], encode=_encode, budgets=[4], **kwargs)[0]  # type: ignore[arg-type]
        assert record.tokens_per_step > 1


@pytest.mark.parametrize(
    ("content", "message"), [("{", "no answer"), ('{"prompt": "a"}', "no answer"), ("[]", "no answer")]
)
def test_a_line_without_an_answer_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content, "utf-8")
    with pytest.raises(SssdError, match=rf"bad\.jsonl:1: {message}"):
        load_set(path, _encode)


def test_what_cannot_be_replayed_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "t.jsonl"
    text.write_text("", "utf-8")
    broken = tmp_path / "b.npz"
    broken.write_bytes(b"nothing")
    for call, message in (
        (lambda: load_set(tmp_path / "none.npz"), "no file"),
        (lambda: load_set(text), "give a tokenizer"),
        (lambda: load_set(broken), "no token set"),
        (lambda: replay(NullDrafter(), _set(), budget=0, name="none"), "budget is 0"),
        (lambda: replay_files([text], drafter="eagle"), "no drafter 'eagle'"),  # type: ignore[arg-type]
        (lambda: replay_files([text], drafter="maxgram", live=True), "need retrieval"),
    ):
        with pytest.raises(SssdError, match=message):
            call()


def test_standardized_walltime_improvement_counts_the_models_reviews() -> None:
    from sssd.config import CascadeConfig
    from sssd.drafting.cascade import Cascade
    from sssd.drafting.level import Level
    from sssd.engines.scripted import ScriptedEngine
    from tests.helpers.scripts import fixed_answer

    free = replay(MaxGram(), _set(([1, 2, 3, 1, 2], [3, 1, 2, 9])), budget=3, name="maxgram")
    assert (free.swi.by_size, free.swi.published, free.swi.measured) == (4.0, 4.0, 4.0)
    answer = [5, 6, 7, 8, 9, 10, 11, 12]
    level = Level("half", ScriptedEngine(fixed_answer(answer, 1), vocab_size=23), n_bytes=50)
    drafter = Cascade([level], NullDrafter(), CascadeConfig(((3, 1), (1,)), adaptive=False))
    record = replay(drafter, _set(([1], answer)), budget=3, name="none", target_bytes=100)
    assert (record.n_steps, record.tokens_per_step) == (2, 4.0)
    assert record.levels[0].reviews == 6
    assert record.swi.by_size == pytest.approx(8 / (2 + 6 * 0.5))
    assert record.swi.measured is None
    assert record.to_json()["swi"]["measured"] is None
