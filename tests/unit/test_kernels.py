"""The device kernels: what they compute, by emulation; that the shipped PTX is theirs; that they compile."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sssd import verify
from sssd.engines.device import Grid
from sssd.engines.kernels import KERNELS, PTX, SOURCE, ptx
from sssd.types import EngineOutput, Int32, NodeScores, Row, VerifyBatch
from tests.helpers import emulated
from tests.helpers.batches import tree_batch

NVCC = shutil.which("nvcc")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
ROOT = Path(__file__).parents[2]
SEEDS = range(12)


def random_batch(rng: np.random.Generator, *, vocab: int = 3) -> VerifyBatch:
    """Trees of few tokens, so that walks go far; the first row may be idle and the last has padding."""
    n_rows, width = int(rng.integers(1, 5)), int(rng.integers(2, 12))
    parents = [[-1, *(int(rng.integers(0, i)) for i in range(1, width))] for _ in range(n_rows)]
    batch = tree_batch(rng.integers(0, vocab, (n_rows, width)).tolist(), parents, [0] * n_rows)
    batch.n_nodes[-1] = rng.integers(1, width + 1)
    return batch


def walked(batch: VerifyBatch, next_ids: np.ndarray, b: int) -> Int32:
    """The columns that the host's walk keeps."""
    row = Row(b, b, 0, np.zeros(1, np.int32), 0, True, _argmax, False, None, frozenset(), 1000)
    return verify.walk(batch, EngineOutput(next_ids), row, b).keep


def _argmax(node: NodeScores, position: int, emitted: object, noise: float) -> int:
    return node.next_id


@pytest.mark.parametrize("seed", SEEDS)
def test_the_device_accepts_what_the_walk_accepts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch = random_batch(rng)
    rows, width = batch.input_ids.shape
    next_ids = rng.integers(0, 3, (rows, width))
    keep, n_keep = np.full(rows * width, -7, np.int32), np.full(rows, -7, np.int32)
    fields = (batch.input_ids, batch.parents, batch.n_forced, batch.n_nodes, next_ids)
    args = (*(f.reshape(-1) for f in fields), keep, n_keep, rows, width, width)
    emulated.run(emulated.accept_greedy, Grid(2), 4, *args, order=rng)
    for b in range(rows):
        np.testing.assert_array_equal(keep.reshape(rows, width)[b, : n_keep[b]], walked(batch, next_ids, b))


def test_an_idle_row_keeps_nothing() -> None:
    one, none = np.ones(1, np.int32), np.zeros(1, np.int32)
    keep, n_keep = np.full(2, -7, np.int32), np.full(1, -7, np.int32)
    emulated.run(
        emulated.accept_greedy, Grid(1), 1, np.zeros(2, np.int64), none - 1, none, none, one, keep, n_keep, 1, 2, 1
    )
    assert n_keep.tolist() == [0]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_commit_moves_the_kept_columns_and_nothing_else_in_any_order_of_threads(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts, slots, heads, length, words, rows, first = 2, 4, 2, 12, 3, 2, 1
    kv = rng.integers(0, 2**32, (parts, slots, heads, length, words), np.uint32)
    past = rng.integers(0, 5, rows)
    keeps = [np.sort(rng.choice(7, int(rng.integers(0, 8)), replace=False)).astype(np.int32) for _ in range(rows)]
    expected = kv.copy()
    for b, keep in enumerate(keeps):
        moved = kv[:, first + b, :, past[b] + keep]
        expected[:, first + b, :, past[b] : past[b] + len(keep)] = np.moveaxis(moved, 0, 2)
    table = np.zeros((rows, 7), np.int32)
    for b, keep in enumerate(keeps):
        table[b, : len(keep)] = keep
    n_keep = np.array([len(k) for k in keeps], np.int32)
    args = (kv.reshape(-1), past, table.reshape(-1), n_keep, 7, first, slots, length, words)
    emulated.run(emulated.kv_commit, Grid(heads, rows, parts), 2, *args, order=rng)
    np.testing.assert_array_equal(kv, expected)


def test_a_copy_takes_the_first_tokens_of_every_head_of_every_part() -> None:
    rng = np.random.default_rng(0)
    kv = rng.integers(0, 2**32, (3, 4, 2, 9, 3), np.uint32)
    expected = kv.copy()
    expected[:, 3, :, :5] = kv[:, 1, :, :5]
    emulated.run(emulated.kv_copy, Grid(2, 3, 3), 4, kv.reshape(-1), 1, 3, 5, 4, 9, 3, order=rng)
    np.testing.assert_array_equal(kv, expected)


# ---- the compiled form ----------------------------------------------------------------------------


def test_the_shipped_ptx_is_made_of_this_source() -> None:
    first = PTX.read_text("ascii").splitlines()[0]
    assert first == f"// source sha256: {hashlib.sha256(SOURCE.read_bytes()).hexdigest()}", "run  make kernels"
    assert ptx().endswith(b"}\n\n\0")


def test_kernels_are_called_with_what_they_are_compiled_for() -> None:
    text = PTX.read_text("ascii")
    found = {}
    for name, parameters in re.findall(r"\.visible \.entry (\w+)\((.*?)\)", text, re.DOTALL):
        found[name] = tuple(re.findall(r"\.param \.(u64|u32)", parameters))
    types = {"address": "u64", "int32": "u32"}
    assert found == {k.name: tuple(types[a] for a in k.arguments) for k in KERNELS.values()}
    assert ".target sm_80" in text


@needs_nvcc
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_120"])
def test_the_kernels_compile_without_a_warning(tmp_path: Path, architecture: str) -> None:
    assert NVCC is not None
    out = tmp_path / "commit.cubin"
    command = [NVCC, "-cubin", f"-arch={architecture}", "-Werror", "all-warnings", "-o", str(out), str(SOURCE)]
    subprocess.run(command, check=True, timeout=120)
    assert out.stat().st_size > 1000


@needs_nvcc
def test_the_shipped_ptx_is_what_nvcc_makes() -> None:
    assert NVCC is not None
    release = re.search(r"V[\d.]+", subprocess.run([NVCC, "--version"], capture_output=True, text=True).stdout)
    if release is None or release[0] not in PTX.read_text("ascii"):
        pytest.skip("this nvcc is another one than the one that made the PTX")
    subprocess.run([sys.executable, ROOT / "scripts" / "make_kernels.py", "--check"], check=True, timeout=120)
