"""A GGUF file computes what the transformers model computes that it was made from, for every architecture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from sssd.export.checkpoint import open_checkpoint
from sssd.export.gguf_families import ARCHITECTURES
from sssd.export.source import as_float32
from tests.helpers.logits import assert_same, reference_logits
from tests.helpers.tiny_gguf import CHAT_TEMPLATE, GGUF_CASES, write_gguf
from tests.helpers.tiny_models import CASES, LENGTH, VOCAB, build_tiny_model, logits_of, tiny_tokenizer

TEXT = "the quick brown fox, 42 times!"


@pytest.mark.parametrize("name", GGUF_CASES)
def test_a_gguf_file_gives_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    case = GGUF_CASES[name]
    model = build_tiny_model(CASES[case.model], **case.fields)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", model, case))
    token_ids = np.random.default_rng(1).integers(0, VOCAB, size=LENGTH)
    assert_same(reference_logits(checkpoint, token_ids), logits_of(model, token_ids))


def test_every_architecture_is_tested() -> None:
    from gguf import MODEL_ARCH_NAMES

    assert {MODEL_ARCH_NAMES[case.arch] for case in GGUF_CASES.values()} == set(ARCHITECTURES)


def test_text_and_ends_come_out_of_the_file(tmp_path: Path) -> None:
    case = GGUF_CASES["llama"]
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", build_tiny_model(CASES["llama"]), case))
    assert (checkpoint.name, checkpoint.bos_id, checkpoint.eos_ids) == ("tiny", 0, (1,))
    assert checkpoint.chat_template == CHAT_TEMPLATE
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer_json)
    assert tokenizer.encode(TEXT).ids == tiny_tokenizer().encode(TEXT).ids


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("name", ["llama", "phi3"])
def test_blocks_are_the_weights_bit_for_bit_in_permuted_and_in_fused_tensors(
    kind: str, name: str, tmp_path: Path
) -> None:
    case = GGUF_CASES[name]
    sizes = {"hidden_size": 64, "intermediate_size": 96}
    model = build_tiny_model(CASES[case.model], **case.fields, **sizes)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", model, case, matrices=kind))
    matrices = [name for name, shape in checkpoint.decoder.weight_shapes().items() if len(shape) == 2]
    for matrix in matrices:
        blocks, weight = checkpoint.weights.blocks(matrix), checkpoint.weights.load(matrix)
        assert blocks is not None
        assert blocks.codes.max() < 2**blocks.bits
        scales, zeros = (np.repeat(x, blocks.block, axis=1) for x in (blocks.scales, blocks.zeros.astype(np.float32)))
        restored = scales * (blocks.codes.astype(np.float32) - zeros)
        if blocks.offsets is not None:
            restored = restored + np.repeat(blocks.offsets, blocks.block, axis=1)
        np.testing.assert_array_equal(restored, as_float32(weight))
    plain = open_checkpoint(write_gguf(tmp_path / "plain.gguf", model, case))
    for matrix in matrices:
        error = np.abs(checkpoint.weights.load(matrix) - plain.weights.load(matrix)).max()
        assert error < np.abs(plain.weights.load(matrix)).max() / 6  # the same weight, rounded
    assert all(plain.weights.blocks(matrix) is None for matrix in matrices)
