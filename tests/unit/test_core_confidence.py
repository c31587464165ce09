"""Scores learn from verdicts, tell the truth about themselves, and survive a restart."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from sssd.drafting import confidence
from sssd.drafting.reference_confidence import Curve
from sssd.drafting.retrieval import Retrieval, RetrievalConfig
from sssd.errors import DatastoreError, RevisionMismatch
from sssd.types import DraftJob, DraftOptions, DraftTree
from tests.helpers.streams import tokens


def _coin_outcomes(n_steps: int, chance: float, seed: int = 0) -> list[int]:
    draw = random.Random(seed)
    return [2 if draw.random() < chance else 1000 + i for i in range(n_steps)]


def _coin_stream(drafter: Retrieval, n_steps: int, chance: float, seed: int = 0) -> list[DraftTree]:
    """A text in which 1 is followed by 2 with `chance` and else by something never seen."""
    drafter.begin(1, tokens(*[1, 2] * 20, 1), DraftOptions())
    trees = []
    for outcome in _coin_outcomes(n_steps, chance, seed):
        trees.append(drafter.propose([DraftJob(1, 1)])[0])
        drafter.accept(1, tokens(outcome, 1), trees[-1])
    drafter.end(1)
    return trees


def test_scores_come_to_what_is_observed() -> None:
    drafter = Retrieval()
    trees, outcomes = _coin_stream(drafter, 2000, 0.3), _coin_outcomes(2000, 0.3)
    predicted = np.mean([t.scores[0] for t in trees[1000:]])
    observed = np.mean([t.tokens[0] == outcome for t, outcome in zip(trees[1000:], outcomes[1000:], strict=True)])
    assert 0.05 < observed < 0.35
    assert predicted == pytest.approx(observed, abs=0.05)


def test_without_learning_scores_stay_the_rules_own() -> None:
    drafter = Retrieval(RetrievalConfig(learn=False))
    _coin_stream(drafter, 50, 0.3)
    assert drafter.reliability() == ()


def test_the_reliability_table_counts_every_judged_node() -> None:
    drafter = Retrieval()
    trees = _coin_stream(drafter, 200, 0.5)
    table = drafter.reliability()
    assert sum(row.n_nodes for row in table) == sum(len(t) for t in trees)
    assert all(row.low <= row.predicted <= row.high for row in table)
    assert all(0 <= row.observed <= 1 for row in table)


@pytest.mark.parametrize("seed", range(5))
def test_a_curve_is_monotone_and_stays_a_probability(seed: int) -> None:
    draw = random.Random(seed)
    curve = Curve()  # equal to the native one: the twin's trees are
    for _ in range(1000):
        chance = draw.random()
        curve.learn(chance, draw.random() < draw.choice([chance, 0.5, 1 - chance]))
    values = [curve.corrected(i / 1000) for i in range(1001)]
    assert values == sorted(values)
    assert values[0] >= 0
    assert values[-1] <= 1


def test_what_was_learned_is_saved_and_loaded(tmp_path: Path) -> None:
    taught, fresh = Retrieval(), Retrieval()
    _coin_stream(taught, 500, 0.2)
    taught.save_confidence(tmp_path / "confidence.json")
    fresh.load_confidence(tmp_path / "confidence.json")
    a = _coin_stream(taught, 1, 0.2)[0]
    b = _coin_stream(fresh, 1, 0.2)[0]
    assert a.scores[0] == b.scores[0]
    assert _coin_stream(Retrieval(), 1, 0.2)[0].scores[0] > a.scores[0] + 0.05
    assert list(tmp_path.iterdir()) == [tmp_path / "confidence.json"]


@pytest.mark.parametrize(
    "change",
    [
        lambda c: "not json",
        lambda c: json.dumps([1]),
        lambda c: json.dumps({**c, "format": "other"}),
        lambda c: json.dumps({**c, "namespaces": {"default": [[1, 2]]}}),
        lambda c: json.dumps({**c, "namespaces": {"default": np.full(confidence.STATE_SHAPE, np.nan).tolist()}}),
        lambda c: json.dumps({**c, "namespaces": {"default": (-np.ones(confidence.STATE_SHAPE)).tolist()}}),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, change: object) -> None:
    path = tmp_path / "confidence.json"
    confidence.save(path, {"default": np.zeros(confidence.STATE_SHAPE)})
    content = json.loads(path.read_text("utf-8"))
    assert callable(change)
    path.write_text(change(content), "utf-8")
    with pytest.raises(DatastoreError, match="confidence"):
        confidence.load(path)


def test_another_revision_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "confidence.json"
    path.write_text(json.dumps({"format": confidence.FORMAT, "revision": 99, "namespaces": {}}), "utf-8")
    with pytest.raises(RevisionMismatch, match="revision 99"):
        confidence.load(path)


def test_a_missing_file_and_a_missing_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(DatastoreError, match="cannot read"):
        confidence.load(tmp_path / "none.json")
    with pytest.raises(DatastoreError, match="cannot write"):
        confidence.save(tmp_path / "no" / "folder.json", {})
