"""Parity passes for right exports and names what is wrong of wrong ones; a failed export leaves nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sssd.architecture import Decoder, Rope
from sssd.engines.ort import OrtEngine
from sssd.engines.reference import ReferenceEngine
from sssd.errors import BundleError, ExportError, ParityError
from sssd.export.parity import N_SLOTS, Observation, compare, difference, observe
from sssd.export.pipeline import check_bundle, write_bundle
from sssd.spec import MANIFEST, WEIGHTS, Bundle, WeightType, open_bundle
from sssd.types import NodeScores
from tests.helpers.random_decoders import FEATURES, LLAMA, RandomWeights, bundle, checkpoint, inv_freq

CHECKS = ["chain", "tree, ragged", "after a commit", "idle row", "after an idle row", "padding", "copied prefix"]


@pytest.mark.parametrize("stored", ["fp32", "fp16", "bf16", "int8", "int4"])
def test_every_check_is_in_the_manifest_below_its_tolerance(tmp_path: Path, stored: WeightType) -> None:
    made = bundle(tmp_path / "b", LLAMA, stored=stored)
    written = open_bundle(made.path).manifest.parity
    assert [c.name for c in written] == CHECKS
    assert all(0 <= c.max_abs_diff <= c.tolerance for c in written)
    assert check_bundle(made.path) == written


def test_topk_bundles_are_checked_too(tmp_path: Path) -> None:
    assert [c.name for c in bundle(tmp_path / "b", LLAMA, scores="topk").manifest.parity] == CHECKS


@pytest.fixture(scope="module")
def observations(tmp_path_factory: pytest.TempPathFactory) -> list[Observation]:
    """What the graph of a decoder with a window says."""
    made = bundle(tmp_path_factory.mktemp("parity") / "b", FEATURES["one window"])
    return observe(OrtEngine(made, n_slots=N_SLOTS, threads=1))


WRONG = {
    "no window": LLAMA,
    "another rope": replace(FEATURES["one window"], ropes=(Rope(inv_freq(8), scale=1.01),)),
    "another scale": replace(FEATURES["one window"], attn_scale=0.26),
    "another norm": replace(FEATURES["one window"], norm_eps=1e-2),
}


@pytest.mark.parametrize("decoder", WRONG.values(), ids=WRONG)
def test_a_graph_that_computes_something_else_is_refused_by_name_and_figure(
    observations: list[Observation], decoder: Decoder
) -> None:
    with pytest.raises(
        ParityError, match=r"parity check '.*': \w+ differs from the reference by [0-9.e-]+, allowed is"
    ):
        compare(observations, decoder, RandomWeights(decoder).load)


def test_every_check_covers_several_sequences_of_different_length(observations: list[Observation]) -> None:
    for check in CHECKS:
        assert len({len(o.sequence) for o in observations if o.check == check}) > 1


def test_a_single_wrong_number_in_any_check_is_found(observations: list[Observation]) -> None:
    decoder = FEATURES["one window"]
    for check in CHECKS:
        i = next(i for i, o in enumerate(observations) if o.check == check)
        scores = observations[i].scores
        assert scores.scores is not None
        for value in (np.float32(1), np.float32(np.nan)):
            moved = scores.scores.copy()
            moved[3] += value
            wrong = [*observations]
            wrong[i] = observations[i]._replace(scores=scores._replace(scores=moved))
            with pytest.raises(ParityError, match=f"'{check}': logits"):
                compare(wrong, decoder, RandomWeights(decoder).load)


def test_a_mask_that_lets_siblings_see_each_other_is_found() -> None:
    class Careless(ReferenceEngine):
        def forward(self, batch):  # type: ignore[no-untyped-def]
            width = batch.input_ids.shape[1]
            return super().forward(
                replace(batch, tree_mask=np.tri(width, dtype=bool)[None].repeat(len(batch.input_ids), 0))
            )

    careless = observe(Careless(LLAMA, RandomWeights(LLAMA).load, n_slots=N_SLOTS))
    with pytest.raises(ParityError, match="'tree, ragged'"):
        compare(careless, LLAMA, RandomWeights(LLAMA).load)


def test_a_commit_that_keeps_the_wrong_columns_is_found() -> None:
    class Careless(ReferenceEngine):
        def commit(self, batch, keeps):  # type: ignore[no-untyped-def]
            super().commit(batch, [np.arange(len(k), dtype=np.int32) for k in keeps])

    careless = observe(Careless(LLAMA, RandomWeights(LLAMA).load, n_slots=N_SLOTS))
    with pytest.raises(ParityError, match="'after a commit'"):
        compare(careless, LLAMA, RandomWeights(LLAMA).load)


def test_topk_outputs_are_held_against_all_logits() -> None:
    expected = np.array([0.0, 3.0, 1.0, 2.0], np.float32)
    lse = float(np.log(np.exp(expected).sum()))
    right = NodeScores(1, np.array([1, 3]), np.array([3.0, 2.0], np.float32), lse)
    assert difference(right, expected).value < 1e-6
    assert difference(right._replace(lse=lse + 0.5), expected) == ("lse", pytest.approx(0.5))
    assert difference(right._replace(next_id=3), expected) == ("next_ids", 1.0)
    missed = right._replace(ids=np.array([1, 2]), scores=np.array([3.0, 1.0], np.float32))
    assert difference(missed, expected) == ("top_ids", 1.0)


def test_a_changed_weight_is_a_damaged_bundle(tmp_path: Path) -> None:
    made = bundle(tmp_path / "b", LLAMA)
    data = bytearray(made.file(WEIGHTS).read_bytes())
    data[-1] ^= 1
    made.file(WEIGHTS).write_bytes(data)
    with pytest.raises(BundleError, match=r"weights\.safetensors: sha256"):
        check_bundle(made.path)


class Interrupted(RandomWeights):
    def load(self, name: str):  # type: ignore[no-untyped-def]
        if name == "layers.1.k.weight":
            raise KeyboardInterrupt
        return super().load(name)


def test_an_interrupted_export_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        bundle(tmp_path / "b", LLAMA, Interrupted(LLAMA))
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_replacement_leaves_the_old_bundle(tmp_path: Path) -> None:
    old = bundle(tmp_path / "b", LLAMA)
    broken = checkpoint(LLAMA, Interrupted(LLAMA))
    with pytest.raises(KeyboardInterrupt):
        write_bundle(broken, old.path, weights="fp32", scores="logits", force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["b"]
    assert open_bundle(old.path) == old


def test_a_directory_that_is_there_is_replaced_by_force_only(tmp_path: Path) -> None:
    old = bundle(tmp_path / "b", LLAMA)
    with pytest.raises(ExportError, match="--force"):
        bundle(tmp_path / "b", LLAMA)
    new = write_bundle(checkpoint(FEATURES["tied"]), old.path, weights="fp32", scores="logits", force=True)
    assert isinstance(new, Bundle)
    assert open_bundle(old.path).manifest.decoder == FEATURES["tied"]
    assert (old.path / MANIFEST).exists()


def test_progress_names_its_stages_and_ends_each(tmp_path: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    write_bundle(
        checkpoint(LLAMA),
        tmp_path / "b",
        weights="fp32",
        scores="logits",
        force=False,
        progress=lambda stage, done, of: reports.append((stage, done, of)),
    )
    assert list(dict.fromkeys(stage for stage, _, _ in reports)) == ["weights", "parity"]
    for stage in ("weights", "parity"):
        done = [d for s, d, _ in reports if s == stage]
        assert done == sorted(done)
        assert done[-1] == next(of for s, _, of in reports if s == stage)
