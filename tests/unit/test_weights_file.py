from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from sssd.engines.stored import StoredWeights
from sssd.errors import BundleError
from sssd.export.quantize import dequantize
from sssd.export.source import as_float32
from sssd.export.storage import Blockwise, Plain, Storage, Weight, encode, tensors
from sssd.export.weights import Tensor, pack_nibbles, plan_layout, write_weights
from tests.helpers.random_decoders import LLAMA, RandomWeights, random_blocks

RNG = np.random.default_rng(0)
ARRAYS: list[tuple[Tensor, npt.NDArray[Any]]] = [
    (Tensor("codes", "uint8", (3, 5)), RNG.integers(0, 256, (3, 5)).astype(np.uint8)),
    (Tensor("nibbles", "uint4", (3, 6)), RNG.integers(0, 16, (3, 6)).astype(np.uint8)),
    (Tensor("half", "float16", (3,)), RNG.standard_normal(3).astype(np.float16)),
    (Tensor("brain", "bfloat16", (2, 2)), RNG.standard_normal((2, 2)).astype(ml_dtypes.bfloat16)),
    (Tensor("single", "float32", (2, 3)), RNG.standard_normal((2, 3)).astype(np.float32)),
    (Tensor("turned", "float32", (3, 2)), RNG.standard_normal((2, 3)).astype(np.float32).T),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "weights.safetensors"
    write_weights(file, plan_layout(t for t, _ in ARRAYS), iter(ARRAYS))
    return file


def test_the_safetensors_package_reads_what_was_written(path: Path) -> None:
    read = load_file(path)
    assert set(read) == {t.name for t, _ in ARRAYS}
    for tensor, array in ARRAYS:
        expected = pack_nibbles(array) if tensor.kind == "uint4" else array
        np.testing.assert_array_equal(read[tensor.name], expected)


def test_tensors_lie_one_after_the_other_each_at_a_multiple_of_its_item_size(path: Path) -> None:
    layout = plan_layout(t for t, _ in ARRAYS)
    end = len(layout.header)
    for place in layout.tensors.values():
        item = {"float32": 4, "float16": 2, "bfloat16": 2, "uint8": 1, "uint4": 1}[place.kind]
        assert place.offset == end
        assert place.offset % item == 0
        end += place.n_bytes
    assert end == layout.n_bytes == path.stat().st_size


def test_a_place_points_at_the_bytes_of_its_tensor(path: Path) -> None:
    data = path.read_bytes()
    place = plan_layout(t for t, _ in ARRAYS).tensors["turned"]
    assert data[place.offset : place.offset + place.n_bytes] == np.ascontiguousarray(ARRAYS[-1][1]).tobytes()


def test_the_first_of_two_nibbles_is_in_the_low_half() -> None:
    assert pack_nibbles(np.array([[1, 2, 15, 0]], np.uint8)).tolist() == [[0x21, 0x0F]]


def test_a_tensor_that_never_comes_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="single"):
        write_weights(tmp_path / "w", plan_layout(t for t, _ in ARRAYS), (a for a in ARRAYS if a[0].name != "single"))


LINEAR, EMBEDDING = "layers.0.gate.weight", "embed.weight"
STORAGES: list[Storage] = [
    Plain("float32"),
    Plain("float16"),
    Plain("bfloat16"),
    Blockwise(4, 32, offsets=True, own=True),
    Blockwise(4, 32, offsets=False, own=True),
    Blockwise(4, 16, offsets=False, own=False),
    Blockwise(8, 32, offsets=False, own=False),
    Blockwise(8, 32, offsets=True, own=True),
]


EIGHT_BITS_OR_MORE = [s for s in STORAGES if not (isinstance(s, Blockwise) and s.bits == 4)]


@pytest.mark.parametrize(
    ("name", "storage"), [*((LINEAR, s) for s in STORAGES), *((EMBEDDING, s) for s in EIGHT_BITS_OR_MORE)], ids=str
)
def test_every_way_of_storing_is_read_back(tmp_path: Path, name: str, storage: Storage) -> None:
    shape = LLAMA.weight_shapes()[name]
    source = RandomWeights(LLAMA)
    tolerance = 0.0
    if isinstance(storage, Blockwise) and storage.own:
        source.own[name] = random_blocks((shape[0], shape[1]), storage.bits, offsets=storage.offsets)
        tolerance = 1e-6
    elif isinstance(storage, Blockwise):
        tolerance = 0.2 if storage.bits == 4 else 0.01
    elif storage.kind != "float32":
        tolerance = 0.01
    weight = Weight(name, shape, storage, by_rows=name == EMBEDDING)
    path = tmp_path / "weights.safetensors"
    write_weights(path, plan_layout(tensors(weight)), encode(weight, source))
    read = StoredWeights(path).load(name)
    expected = dequantize(source.own[name]) if name in source.own else as_float32(source.load(name))
    assert read.dtype == np.float32
    np.testing.assert_allclose(read, expected, rtol=0, atol=tolerance)


def test_linear_weights_are_stored_inputs_first_and_the_embedding_by_rows(path: Path) -> None:
    shapes = LLAMA.weight_shapes()
    assert tensors(Weight(LINEAR, shapes[LINEAR], Plain("float32"), by_rows=False))[0].dims == (32, 64)
    assert tensors(Weight(EMBEDDING, shapes[EMBEDDING], Plain("float32"), by_rows=True))[0].dims == (96, 32)
    assert [t.dims for t in tensors(Weight(LINEAR, shapes[LINEAR], Blockwise(4, 16, False, False), by_rows=False))] == [
        (32, 64),
        (2, 64),
        (2, 64),
    ]


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"\x10\0\0\0\0\0\0\0 no json no json")
    with pytest.raises(BundleError, match="is not a weights file"):
        StoredWeights(tmp_path / "w")
    with pytest.raises(BundleError, match="is not a weights file"):
        StoredWeights(tmp_path / "absent")


def test_a_tensor_that_is_not_there_is_named(path: Path) -> None:
    with pytest.raises(BundleError, match=r"layers\.9\.q\.weight"):
        StoredWeights(path).load("layers.9.q.weight")
