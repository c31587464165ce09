from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from sssd.engines.scripted import ScriptedEngine
from sssd.runtime.selftest import SelfTest, self_test
from sssd.types import EngineOutput, Float32, Int32, VerifyBatch

VOCAB = 40


def script(context: Int32) -> Float32:
    scores = np.zeros(VOCAB, np.float32)
    scores[int(context.sum()) % VOCAB] = 1
    return scores


class Broken(ScriptedEngine):
    """Whose scores go through `spoil`, from the forward `since` on."""

    def __init__(self, spoil: Callable[[EngineOutput, int], EngineOutput]) -> None:
        super().__init__(script, vocab_size=VOCAB)
        self._spoil = spoil

    def forward(self, batch: VerifyBatch) -> EngineOutput:
        return self._spoil(super().forward(batch), self.n_forwards)


def report_of(engine: ScriptedEngine) -> SelfTest:
    return self_test(engine, rows=3, min_width=2, max_width=8, chunk=20)


def test_an_engine_that_works_has_no_problems_in_any_shape() -> None:
    engine = ScriptedEngine(script, vocab_size=VOCAB, eos_ids=(3,))
    report = report_of(engine)
    assert report.problems == []
    assert [(s.rows, s.width) for s in report.shapes] == [(1, 2), (1, 8), (1, 20), (3, 2), (3, 8)]
    assert set(engine.widths) == {2, 5, 8, 20}


def with_logits(out: EngineOutput, change: Callable[[Float32], object]) -> EngineOutput:
    assert out.logits is not None
    logits = out.logits.copy()
    change(logits)
    return dataclasses.replace(out, logits=logits)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda out, n: with_logits(out, lambda x: x.fill(np.nan)), "scores are not finite"),
        (lambda out, n: with_logits(out, lambda x: x.__imul__(-1)), "the best score is not the token"),
        (lambda out, n: with_logits(out, lambda x: x.__iadd__(n)), "two runs differ"),
        (lambda out, n: dataclasses.replace(out, logits=None), "no scores came back"),
    ],
)
def test_what_an_engine_does_wrong_is_named_with_its_shape(
    spoil: Callable[[EngineOutput, int], EngineOutput], says: str
) -> None:
    problems = report_of(Broken(spoil)).problems
    assert any(p.startswith("1 rows of 2 columns: ") and says in p for p in problems), problems


def test_an_engine_that_fails_in_one_shape_is_tried_in_the_others() -> None:
    report = report_of(ScriptedEngine(script, vocab_size=VOCAB, fails_at=frozenset({3})))
    assert [len(s.problems) for s in report.shapes] == [1, 0, 0, 0, 0]
    assert "scripted failure of forward 3" in report.problems[0]


def test_a_prefix_that_is_copied_wrongly_is_noticed() -> None:
    class Forgetful(ScriptedEngine):
        def copy_prefix(self, src: int, dst: int, n: int) -> None:
            super().copy_prefix(src, dst, n)
            self._kv[dst, 0] += 1

    problems = report_of(Forgetful(script, vocab_size=VOCAB)).problems
    assert problems == ["a copied beginning gives other scores than the one it was copied from"]
