"""Drafts behind guesses: what a drafter says when tokens that are not committed stand behind the text."""

from __future__ import annotations

import numpy as np
import pytest

from sssd.drafting.retrieval import Retrieval, RetrievalConfig
from sssd.drafting.rules import AuthorsRules
from sssd.drafting.simple import MaxGram, PromptLookup
from sssd.types import DraftJob, DraftOptions
from tests.helpers.cascades import slow_max_gram


def tokens(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


@pytest.mark.parametrize("seed", range(20))
def test_max_gram_copies_as_if_the_guesses_were_committed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    text = rng.integers(0, 4, int(rng.integers(1, 30))).astype(np.int32)
    drafter = MaxGram()
    drafter.begin(0, text, DraftOptions())
    for _ in range(8):
        ahead = rng.integers(0, 4, int(rng.integers(1, 12))).astype(np.int32)
        (found,) = drafter.propose([DraftJob(0, 7, ahead)])
        assert found.tokens.tolist() == slow_max_gram([*text.tolist(), *ahead.tolist()], 7)


def test_prompt_lookup_copies_behind_guesses() -> None:
    drafter = PromptLookup()
    drafter.begin(0, tokens(1, 2, 3, 4, 5, 9), DraftOptions())
    (found,) = drafter.propose([DraftJob(0, 2, tokens(1, 2, 3))])
    assert found.tokens.tolist() == [4, 5]


def test_retrieval_finds_what_it_finds_behind_the_same_committed_tokens() -> None:
    rng = np.random.default_rng(1)
    text = rng.permutation(200).astype(np.int32)
    for at in range(3, 150, 7):
        ahead = text[at - 3 : at]
        guessing, knowing = Retrieval(), Retrieval()
        guessing.begin(0, text, DraftOptions())
        knowing.begin(0, np.concatenate([text, ahead]), DraftOptions())
        (found,) = guessing.propose([DraftJob(0, 9, ahead)])
        (expected,) = knowing.propose([DraftJob(0, 9)])
        assert found.tokens.tolist() == expected.tokens.tolist() == text[at : at + 9].tolist()
        assert found.parents.tolist() == expected.parents.tolist()
        assert found.scores == pytest.approx(expected.scores, rel=0.2)


def test_guesses_teach_nothing_and_leave_the_last_proposal_alone() -> None:
    text = tokens(*[1, 2, 3, 4, 5, 6] * 4)
    seen = []
    for guesses in (False, True):
        drafter = Retrieval()
        drafter.begin(0, text, DraftOptions())
        (tree,) = drafter.propose([DraftJob(0, 4)])
        if guesses:
            mixed = drafter.propose([DraftJob(0, 3, tokens(1, 2)), DraftJob(0, 5, tokens(3))])
            assert [t.tokens[0] for t in mixed] == [3, 4]
        drafter.accept(0, tree.tokens[:2].copy(), tree)
        seen.append(drafter.reliability())
        assert drafter.check() == []
    assert seen[0] == seen[1]
    assert seen[0]


def test_the_authors_rules_refuse_guesses() -> None:
    drafter = Retrieval(RetrievalConfig(rules=AuthorsRules()))
    drafter.begin(0, tokens(1, 2, 3), DraftOptions())
    with pytest.raises(ValueError, match="committed text only"):
        drafter.propose([DraftJob(0, 3, tokens(1))])
