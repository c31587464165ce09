"""From `min_width` on, a column's scores are the same bits whatever is computed beside it: lossless rests on this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from sssd.engines.ort import OrtEngine
from sssd.spec import Bundle, WeightType
from sssd.types import Float32, VerifyBatch
from tests.helpers.batches import chain_batch, tree_batch
from tests.helpers.random_decoders import LLAMA, VOCAB, bundle, with_own_blocks

# wide enough for the kernels to split rows, columns and inner products as they do in real models
DECODER = replace(LLAMA, hidden=256, intermediate=704, n_heads=8, n_kv_heads=2, head_dim=32, tied=True)
PAST = 37
RNG = np.random.default_rng(0)
PROMPTS = RNG.integers(0, VOCAB, (4, PAST)).tolist()
COLUMNS = RNG.integers(0, VOCAB, (4, 33)).tolist()
KINDS: dict[str, WeightType] = {"fp32": "fp32", "int8": "int8", "int4": "int4", "int4 with offsets": "int4"}


@pytest.fixture(scope="module", params=KINDS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    own = with_own_blocks(DECODER, 4, offsets=True) if request.param == "int4 with offsets" else None
    return bundle(tmp_path_factory.mktemp("stable") / "b", DECODER, own, stored=KINDS[request.param])


@pytest.fixture
def engine(made: Bundle) -> OrtEngine:
    return prefilled(OrtEngine(made, n_slots=4, threads=2))


def prefilled(engine: OrtEngine) -> OrtEngine:
    engine.forward(chain_batch(PROMPTS, [0] * 4))
    return engine


def logits(engine: OrtEngine, batch: VerifyBatch) -> Float32:
    out = engine.forward(batch).logits
    assert out is not None
    return out.copy()


def rows(n_rows: int, width: int) -> Sequence[Sequence[int]]:
    return [row[:width] for row in COLUMNS[:n_rows]]


def test_over_widths(engine: OrtEngine) -> None:
    widest = logits(engine, chain_batch(rows(1, 33), [PAST]))
    for width in range(engine.spec.min_width, 33):
        np.testing.assert_array_equal(logits(engine, chain_batch(rows(1, width), [PAST])), widest[:, :width])


def test_over_batches_of_ragged_rows(engine: OrtEngine) -> None:
    alone = logits(engine, chain_batch(rows(1, 8), [PAST]))
    for n_rows in (2, 3, 4):
        together = logits(engine, chain_batch(rows(n_rows, 8), [PAST, 20, 9, 30][:n_rows]))
        np.testing.assert_array_equal(together[0], alone[0])


def test_over_what_the_other_columns_and_the_other_rows_hold(engine: OrtEngine) -> None:
    first = logits(engine, chain_batch(rows(2, 8), [PAST, PAST]))
    changed = [[*COLUMNS[0][:3], 1, 2, 3, 4, 5], [7] * 8]
    np.testing.assert_array_equal(logits(engine, chain_batch(changed, [PAST, 11]))[0, :3], first[0, :3])


def test_over_the_branches_that_stand_behind_a_trees_first_path(engine: OrtEngine) -> None:
    chain = logits(engine, chain_batch(rows(1, 3), [PAST]))[0]
    tree = logits(engine, tree_batch([[*COLUMNS[0][:3], 9, 8, 7]], [[-1, 0, 1, 0, 3, 1]], [PAST]))[0]
    np.testing.assert_array_equal(tree[:3], chain)


def test_another_path_of_a_tree_is_stable_to_rounding_only(made: Bundle) -> None:
    # its keys stand further right than in sequence, so that the softmax adds them up in another order
    engine = prefilled(OrtEngine(made, n_slots=4, threads=2, exact=True))
    a, b, c = COLUMNS[0][:3]
    chain = logits(engine, chain_batch([[a, b, c]], [PAST]))[0]
    tree = logits(engine, tree_batch([[a, 9, b, 8, c]], [[-1, 0, 0, 1, 2]], [PAST]))[0]
    np.testing.assert_allclose(tree[[0, 2, 4]], chain, atol=1e-4)


@pytest.mark.parametrize("chunk", [2, 3, 7, 20])
def test_over_the_chunks_of_a_prompt(engine: OrtEngine, made: Bundle, chunk: int) -> None:
    expected = logits(engine, chain_batch(rows(1, 8), [PAST]))
    other = OrtEngine(made, n_slots=4, threads=2)
    for start in range(0, PAST, chunk):
        part = PROMPTS[0][start : start + chunk]
        other.forward(chain_batch([[*part, 0] if len(part) == 1 else part], [start]))
    np.testing.assert_array_equal(logits(other, chain_batch(rows(1, 8), [PAST])), expected)


def test_over_the_size_of_the_cache(engine: OrtEngine) -> None:
    expected = logits(engine, chain_batch(rows(1, 8), [PAST]))
    before = engine.cache_len
    engine.forward(chain_batch([[1, 2]], [before + 40], first_slot=3))
    assert engine.cache_len > before
    np.testing.assert_array_equal(logits(engine, chain_batch(rows(1, 8), [PAST])), expected)


def test_over_the_number_of_scored_columns(engine: OrtEngine) -> None:
    batch = chain_batch(rows(1, 8), [PAST])
    expected = logits(engine, batch)
    for n in (1, 2, 5):
        few = replace(batch, logit_rows=np.arange(n)[None])
        np.testing.assert_array_equal(logits(engine, few), expected[:, :n])


def test_over_threads(engine: OrtEngine, made: Bundle) -> None:
    single = prefilled(OrtEngine(made, n_slots=4, threads=1))
    batch = chain_batch(rows(1, 8), [PAST])
    np.testing.assert_array_equal(logits(single, batch), logits(engine, batch))
