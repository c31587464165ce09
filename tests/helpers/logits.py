"""Logits of a whole text by the reference engine and by an exported graph, and how they are compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sssd.engines.reference import ReferenceEngine
from sssd.export.source import Checkpoint, as_float32
from sssd.types import VerifyBatch

TOLERANCE = 1e-3


def assert_same(logits: np.ndarray, expected: np.ndarray) -> None:
    assert logits.shape == expected.shape
    assert np.ptp(expected, axis=-1).min() > 1  # the model says something
    assert np.abs(logits - expected).max() <= TOLERANCE
    np.testing.assert_array_equal(logits.argmax(-1), expected.argmax(-1))


def reference_logits(checkpoint: Checkpoint, token_ids: np.ndarray) -> np.ndarray:
    engine = ReferenceEngine(
        checkpoint.decoder, lambda name: as_float32(checkpoint.weights.load(name)), max_len=checkpoint.max_len
    )
    n = len(token_ids)
    columns = np.arange(n)[None]
    batch = VerifyBatch(
        first_slot=0,
        input_ids=token_ids[None],
        position_ids=columns,
        past_lens=np.zeros(1, np.int64),
        tree_mask=np.tril(np.ones((1, n, n), bool)),
        logit_rows=columns,
        parents=(columns - 1).astype(np.int32),
        n_forced=np.array([n], np.int32),
        n_nodes=np.array([n], np.int32),
        needs_scores=True,
    )
    logits = engine.forward(batch).logits
    assert logits is not None
    return logits[0]


def graph_logits(graph: Path, token_ids: np.ndarray) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    n = len(token_ids)
    columns = np.arange(n)[None]
    feeds = {
        "input_ids": token_ids[None],
        "position_ids": columns,
        "past_lens": np.zeros(1, np.int64),
        "tree_mask": np.tril(np.ones((1, n, n), bool)),
        "logit_rows": columns,
    }
    for value in session.get_inputs():
        if value.name.startswith("past_") and value.name not in feeds:
            _, n_kv_heads, _, head_dim = value.shape
            feeds[value.name] = np.zeros((1, n_kv_heads, n + 3, head_dim), np.float32)
    (logits,) = session.run(["logits"], feeds)
    return logits[0]
