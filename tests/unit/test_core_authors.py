"""The authors' rules reproduce the worked examples of their library's own tests."""

from __future__ import annotations

import pytest

from sssd.drafting.retrieval import Retrieval, RetrievalConfig
from sssd.drafting.rules import AuthorsRules
from sssd.types import DraftJob, DraftOptions, DraftTree
from tests.helpers.streams import paths, segment, tokens


def _from_datastore(*query: int) -> DraftTree:
    drafter = Retrieval(RetrievalConfig(rules=AuthorsRules(branch=3), learn=False))
    chunks = [segment([tokens(1, 2, 3, 4, 1, 2, 31, 41, 5, 6, 7, 8)]), segment([tokens(*range(9, 17))])]
    drafter.publish("default", chunks)
    drafter.begin(1, tokens(*query), DraftOptions())
    return drafter.propose([DraftJob(1, 7)])[0]


def test_a_branching_query_gives_both_continuations() -> None:
    expected = {(3,), (3, 4), (3, 4, 1), (31,), (31, 41), (31, 41, 5)}
    assert sorted(paths(_from_datastore(1, 2))) == sorted(expected)


@pytest.mark.parametrize(("query", "chain"), [((5, 6), [7, 8]), ((9, 10), [11, 12, 13]), ((11,), [12, 13, 14])])
def test_a_query_with_one_continuation_gives_a_chain(query: tuple[int, ...], chain: list[int]) -> None:
    tree = _from_datastore(*query)
    assert tree.tokens.tolist() == chain
    assert tree.parents.tolist() == list(range(-1, len(chain) - 1))


def test_prompt_windows_merge_into_one_tree_longest_branch_first() -> None:
    # Four prompts in one text: separators keep their windows apart, and three of them stand in for the bridge.
    texts = [[0, 1, 2, 3, 4], [0, 1, 2, 3, 7, 8, 9], [0, 1, 2, 4], [0, 1, 3, 4, 7, 9]]
    prompt = [t for text in texts for t in (*text, -1)] + [-1, -1, 0]
    drafter = Retrieval(RetrievalConfig(rules=AuthorsRules(window=9), learn=False))
    drafter.begin(1, tokens(*prompt), DraftOptions())
    tree = drafter.propose([DraftJob(1, 15)])[0]
    assert [0, *tree.tokens.tolist()] == [0, 1, 2, 3, 7, 8, 9, 4, 4, 3, 4, 7, 9]
    assert [0, *(len(path) for path in paths(tree))] == [0, 1, 2, 3, 4, 5, 6, 4, 3, 2, 3, 4, 5]
