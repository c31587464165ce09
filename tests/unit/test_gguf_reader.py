"""The GGUF container: what is written is read, and a file that is cut or damaged is refused in one line."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from sssd.errors import ExportError, UnsupportedModel
from sssd.export.checkpoint import open_checkpoint
from sssd.export.gguf_families import architecture_of, gguf_config
from sssd.export.gguf_reader import read_gguf
from sssd.export.gguf_weights import GgufTensors
from sssd.export.naming import RowRange

TYPES = gguf.GGMLQuantizationType


def write(path: Path, arch: str = "llama", **numbers: int) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    for key, value in numbers.items():
        writer.add_uint32(key.replace("__", "."), value)
    writer.add_array("a.strings", ["x", "", "é\u2581"])
    writer.add_array("a.numbers", [1.5, -2.0])
    writer.add_bool("a.flag", True)
    writer.add_int64("a.long", -(2**40))
    rng = np.random.default_rng(0)
    writer.add_tensor("vector", rng.normal(size=5).astype(np.float32))
    writer.add_tensor("half", rng.normal(size=(3, 4)).astype(np.float16))
    for kind in (TYPES.Q4_0, TYPES.Q4_1, TYPES.Q8_0, TYPES.Q5_1, TYPES.BF16):
        values = rng.normal(size=(6, 64)).astype(np.float32)
        writer.add_tensor(kind.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_and_tensors_are_those_of_the_gguf_package(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", general__alignment=64)
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    plain = {name: f.contents() for name, f in theirs.fields.items() if not name.startswith("GGUF.")}
    assert ours.metadata == plain
    assert {name: info.shape for name, info in ours.tensors.items()} == {
        t.name: tuple(int(n) for n in reversed(t.shape)) for t in theirs.tensors
    }
    tensors = GgufTensors(ours)
    for tensor in theirs.tensors:
        n_rows = tensors.shapes()[tensor.name][0]
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(tensors.load(tensor.name, RowRange(0, n_rows)), expected)
        np.testing.assert_array_equal(tensors.load(tensor.name, RowRange(1, n_rows - 1)), expected[1:-1])


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_blocks_of_any_rows_are_the_dequantized_rows_bit_for_bit(kind: str, tmp_path: Path) -> None:
    tensors = GgufTensors(read_gguf(write(tmp_path / "a.gguf")))
    for rows in (RowRange(0, 6), RowRange(2, 5)):
        blocks = tensors.blocks(kind, rows)
        assert blocks is not None
        assert blocks.scales.shape == (rows.stop - rows.start, 2)
        restored = np.zeros(blocks.codes.shape, np.float32)
        for o, i in np.ndindex(restored.shape):  # the plain slow twin
            b = i // blocks.block
            restored[o, i] = blocks.scales[o, b] * np.float32(int(blocks.codes[o, i]) - int(blocks.zeros[o, b]))
            restored[o, i] += 0 if blocks.offsets is None else blocks.offsets[o, b]
        np.testing.assert_array_equal(restored, tensors.load(kind, rows))


def test_other_types_have_no_blocks(tmp_path: Path) -> None:
    tensors = GgufTensors(read_gguf(write(tmp_path / "a.gguf")))
    assert tensors.blocks("Q5_1", RowRange(0, 6)) is None
    assert tensors.blocks("half", RowRange(0, 3)) is None


def extent(path: Path) -> tuple[int, int]:
    """Where the tensors' data begins and ends."""
    tensors = read_gguf(path).tensors.values()
    return min(t.start for t in tensors), max(t.start + t.shape[0] * t.row_bytes for t in tensors)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.gguf").read_bytes()
    start, end = extent(tmp_path / "a.gguf")
    cut = tmp_path / "cut.gguf"
    for n_bytes in [*range(0, start, 3), *range(start, end, 97), end - 1]:
        cut.write_bytes(whole[:n_bytes])
        with pytest.raises(ExportError, match=r"cut\.gguf is (cut short|no GGUF file)"):
            read_gguf(cut)


def test_a_file_with_any_header_byte_changed_is_read_or_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.gguf").read_bytes()
    start, _ = extent(tmp_path / "a.gguf")
    changed = tmp_path / "changed.gguf"
    refused = 0
    for at in range(0, start, 3):
        changed.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            read_gguf(changed)
        except ExportError:
            refused += 1
    assert refused > start / 12


def test_other_files_and_versions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(ExportError, match="no GGUF file"):
        open_checkpoint(path)
    path.write_bytes(b"GGUF" + (1).to_bytes(4, "little") + bytes(16))
    with pytest.raises(UnsupportedModel, match="version 1: only 2 and 3"):
        open_checkpoint(path)
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "big") + bytes(16))
    with pytest.raises(UnsupportedModel, match="big-endian"):
        open_checkpoint(path)


def test_an_unknown_architecture_lists_the_supported_ones(tmp_path: Path) -> None:
    file = read_gguf(write(tmp_path / "a.gguf", arch="mamba"))
    with pytest.raises(UnsupportedModel, match="'mamba' is not supported, only gemma3, granite, llama, olmo2, phi3"):
        architecture_of(file)


def test_a_part_of_a_split_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="merge them"):
        architecture_of(read_gguf(write(tmp_path / "a.gguf", split__count=3)))


def test_metadata_that_asks_for_another_computation_is_refused(tmp_path: Path) -> None:
    for arch, key in (("llama", "expert_count"), ("olmo2", "attention.sliding_window")):
        file = read_gguf(write(tmp_path / "a.gguf", arch=arch, **{f"{arch}.{key}": 8}))
        with pytest.raises(UnsupportedModel, match=f"sets {arch}.{key}"):
            gguf_config(file, GgufTensors(file))


def gemma3_scalar(path: Path, n_layers: int) -> float:
    """What q . k of a gemma3 file is divided by the root of."""
    writer = gguf.GGUFWriter(path, "gemma3")
    for key, value in {"embedding_length": 5376, "attention.head_count": 32, "block_count": n_layers}.items():
        writer.add_uint32(f"gemma3.{key}", value)
    writer.add_uint32("gemma3.attention.key_length", 128)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    file = read_gguf(path)
    return gguf_config(file, GgufTensors(file)).number("query_pre_attn_scalar")


def test_gemma3_scales_attention_by_the_head_except_its_largest_model(tmp_path: Path) -> None:
    assert gemma3_scalar(tmp_path / "a.gguf", 34) == 128
    assert gemma3_scalar(tmp_path / "b.gguf", 62) == 168  # 5376 / 32
