from __future__ import annotations

import math

import numpy as np
import pytest

from sssd.architecture import Decoder, Rope
from sssd.engines.reference import ReferenceEngine, activate, rms_norm, rotate, softmax, visible
from sssd.errors import EngineError
from sssd.types import Float32, VerifyBatch
from tests.helpers.batches import chain_batch, tree_batch
from tests.helpers.random_decoders import FEATURES, LLAMA, VOCAB, RandomWeights

RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, VOCAB, 14).tolist()
TREE = [-1, 0, 1, 0, 3, 3, 1]  # parents of a tree of seven columns
EVERY_FEATURE = pytest.mark.parametrize("decoder", FEATURES.values(), ids=FEATURES)


def engine(decoder: Decoder, n_slots: int = 1) -> ReferenceEngine:
    return ReferenceEngine(decoder, RandomWeights(decoder).load, n_slots=n_slots, max_len=64)


def logits(of: ReferenceEngine, batch: VerifyBatch) -> Float32:
    out = of.forward(batch).logits
    assert out is not None
    return out


@EVERY_FEATURE
def test_one_token_at_a_time_says_the_same_as_all_at_once(decoder: Decoder) -> None:
    whole = logits(engine(decoder), chain_batch([TOKENS], [0]))[0]
    one = engine(decoder)
    for i, token in enumerate(TOKENS):
        np.testing.assert_allclose(logits(one, chain_batch([[token]], [i]))[0, 0], whole[i], atol=1e-4)


@EVERY_FEATURE
def test_every_path_of_a_tree_says_the_same_as_its_tokens_in_sequence(decoder: Decoder) -> None:
    of, past = engine(decoder), TOKENS[:5]
    of.forward(chain_batch([past], [0]))
    tree = RNG.integers(0, VOCAB, len(TREE)).tolist()
    batch = tree_batch([tree], [TREE], [len(past)])
    found = logits(of, batch)[0]
    for column in range(len(TREE)):
        path = [tree[i] for i in np.flatnonzero(batch.tree_mask[0, column])]
        expected = logits(engine(decoder), chain_batch([[*past, *path]], [0]))[0, -1]
        np.testing.assert_allclose(found[column], expected, atol=1e-4)


def test_rows_of_a_batch_do_not_see_one_another() -> None:
    together = engine(LLAMA, 2)
    together.forward(chain_batch([TOKENS[:6], TOKENS[3:9]], [0, 0]))
    found = logits(together, chain_batch([TOKENS[:3], TOKENS[5:8]], [6, 2]))
    for b, past in ((0, TOKENS[:6]), (1, TOKENS[3:5])):
        alone = engine(LLAMA)
        alone.forward(chain_batch([past], [0]))
        tokens = (TOKENS[:3], TOKENS[5:8])[b]
        np.testing.assert_allclose(found[b], logits(alone, chain_batch([tokens], [len(past)]))[0], atol=1e-5)


def test_a_commit_keeps_the_path_and_drops_the_rest() -> None:
    of, past = engine(LLAMA), TOKENS[:4]
    of.forward(chain_batch([past], [0]))
    tree = TOKENS[4:11]
    batch = tree_batch([tree], [TREE], [4])
    of.forward(batch)
    of.commit(batch, [np.array([0, 3, 5], np.int32)])
    found = logits(of, chain_batch([[7]], [7]))[0, 0]
    expected = logits(engine(LLAMA), chain_batch([[*past, tree[0], tree[3], tree[5], 7]], [0]))[0, -1]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(AssertionError):
        of.forward(chain_batch([[7]], [9]))  # nothing is held there


def test_a_copied_prefix_continues_like_the_original_and_leaves_it_alone() -> None:
    of = engine(LLAMA, 2)
    of.forward(chain_batch([TOKENS[:6]], [0]))
    of.copy_prefix(0, 1, 4)
    found = logits(of, chain_batch([[9, 8]], [4], first_slot=1))[0]
    expected = logits(engine(LLAMA), chain_batch([[*TOKENS[:4], 9, 8]], [0]))[0, -2:]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    again = logits(of, chain_batch([[5]], [6]))[0, 0]
    np.testing.assert_allclose(again, logits(engine(LLAMA), chain_batch([[*TOKENS[:6], 5]], [0]))[0, -1], atol=1e-5)


def test_only_the_asked_columns_are_scored() -> None:
    batch = chain_batch([TOKENS], [0])
    few = VerifyBatch(
        **{f: getattr(batch, f) for f in batch.__slots__ if f != "logit_rows"}, logit_rows=np.array([[2, 9]])
    )
    found = logits(engine(LLAMA), few)
    np.testing.assert_allclose(found[0], logits(engine(LLAMA), batch)[0, [2, 9]], atol=1e-5)


def test_a_row_longer_than_a_slot_is_an_error() -> None:
    with pytest.raises(EngineError, match="would hold 65 tokens, but the engine holds 64"):
        engine(LLAMA).forward(chain_batch([[1] * 65], [0]))


def test_a_window_is_measured_between_positions_not_columns() -> None:
    # past 4 tokens; columns: a root at 4, two siblings at 5, a child of the second at 6
    mask = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], bool)
    seen = visible(4, np.array([4, 5, 5, 6]), mask, 3)
    assert seen.astype(int).tolist() == [
        [0, 0, 1, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 1, 1, 0, 0],
        [0, 0, 0, 1, 1, 0, 1, 0],
        [0, 0, 0, 0, 1, 0, 1, 1],
    ]


def test_the_small_functions_equal_their_formulas() -> None:
    x = RNG.standard_normal((2, 3, 1, 6)).astype(np.float32)
    norm = rms_norm(x[0, 0, 0], np.arange(6, dtype=np.float32), 0.1)
    root = math.sqrt(sum(float(v) ** 2 for v in x[0, 0, 0]) / 6 + 0.1)
    np.testing.assert_allclose(norm, [i * v / root for i, v in enumerate(x[0, 0, 0])], rtol=1e-5)

    rope, positions = Rope((0.5, 0.25), scale=2.0), np.array([[0, 1, 5], [2, 3, 4]])
    turned = rotate(x, positions, rope)
    for (b, t, _, i), value in np.ndenumerate(turned):
        if i >= 4:
            assert value == x[b, t, 0, i]
            continue
        angle = positions[b, t] * rope.inv_freq[i % 2]
        other = -x[b, t, 0, i + 2] if i < 2 else x[b, t, 0, i - 2]
        assert value == pytest.approx(2.0 * (x[b, t, 0, i] * math.cos(angle) + other * math.sin(angle)), abs=1e-5)

    weights = softmax(np.array([[1.0, -np.inf, 1000.0]], np.float32))
    assert weights.tolist() == [[0.0, 0.0, 1.0]]
    for v in (-100.0, -1.5, 0.0, 2.0, 100.0):
        silu = v / (1 + math.exp(-v))
        gelu = 0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))
        assert activate(np.float32([v]), "silu")[0] == pytest.approx(silu, abs=1e-5)
        assert activate(np.float32([v]), "gelu_tanh")[0] == pytest.approx(gelu, abs=1e-5)
