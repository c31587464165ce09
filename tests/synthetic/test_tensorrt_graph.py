"""The graph that TensorRT is given: its meaning, its form, and what is refused. Nothing here needs TensorRT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from sssd.engines.ort import OrtEngine
from sssd.errors import ExportError, UnsupportedModel
from sssd.export.half import half_graph
from sssd.export.targets import weights_for
from sssd.export.tensorrt.profiles import cache_length, plan_profiles, shape_of
from sssd.export.tensorrt.rewrite import require_head_size, tensorrt_graph
from sssd.plan import PlanOptions
from sssd.spec import GRAPH, Bundle, TensorSpec, WeightType
from sssd.types import VerifyBatch
from tests.helpers.batches import chain_batch, tree_batch
from tests.helpers.plans import OPTIONS, changed, family, in_float32, portable_bundle, runnable
from tests.helpers.random_decoders import FEATURES, with_own_blocks
from tests.helpers.tiny_directory import declare

S = 128
RNG = np.random.default_rng(0)
# float16 keeps 11 bits: after two or three layers the scores were off by at most 0.003 of the largest one, over all
# features and weight types here; a wrong mask, scale or position moves them by a large part of it
TOLERANCE = 0.006
TREE = [-1, 0, 1, 0, 3, 3, 1]


def portable(made: Bundle) -> Any:
    return onnx.load(made.file(GRAPH), load_external_data=False)


# ---- meaning --------------------------------------------------------------------------------------


class Rewritten:
    """The graph for TensorRT, run by ONNX Runtime with TensorRT's operators modelled."""

    def __init__(self, made: Bundle, *, half: str = "float16", drop_lengths: bool = False) -> None:
        model = runnable(tensorrt_graph(portable(made), half, S))  # type: ignore[arg-type]
        if half == "bfloat16":
            model = in_float32(model, made.path)
        path = made.file("modelled.onnx")
        path.write_bytes(model.SerializeToString())
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")  # exact activations
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.names = [o.name for o in self.session.get_outputs()]
        spec = made.spec
        kind = np.float32 if half == "bfloat16" else np.float16
        shape = (2, spec.n_kv_heads, S, spec.head_dim)
        self.cache = {f"{p}_{i}": np.full(shape, 7, kind) for i in range(spec.n_layers) for p in "kv"}

    def forward(self, batch: VerifyBatch) -> dict[str, np.ndarray]:
        names = ("input_ids", "position_ids", "past_lens", "tree_mask", "logit_rows")
        feeds = {name: getattr(batch, name) for name in names}
        out = dict(
            zip(
                self.names, self.session.run(None, feeds | {f"past_{k}": v for k, v in self.cache.items()}), strict=True
            )
        )
        self.cache = {k: out[f"present_{k}"] for k in self.cache}
        return out


def assert_same_meaning(made: Bundle, half: str = "float16") -> None:
    """Chains past every window, then trees behind ragged pasts; garbage lies in the cache."""
    engine, rewritten = OrtEngine(made, n_slots=2, threads=1, exact=True), Rewritten(made, half=half)
    vocab = made.spec.vocab_size
    chains = chain_batch(RNG.integers(0, vocab, (2, 12)).tolist(), [0, 0])
    trees = tree_batch(RNG.integers(0, vocab, (2, 7)).tolist(), [TREE, TREE], [12, 9])
    for batch in (chains, trees):
        expected, found = engine.forward(batch), rewritten.forward(batch)
        assert expected.top_scores is not None
        assert expected.lse is not None
        allowed = 1e-4 if half == "bfloat16" else TOLERANCE * float(np.abs(expected.top_scores).max())
        np.testing.assert_allclose(found["top_scores"], expected.top_scores, rtol=0, atol=allowed)
        np.testing.assert_allclose(found["lse"], expected.lse, rtol=0, atol=allowed)
        assert found["top_scores"].dtype == np.float32


@pytest.mark.parametrize("decoder", FEATURES.values(), ids=FEATURES)
def test_every_feature_of_a_decoder_means_the_same_to_tensorrt(tmp_path: Path, decoder: Any) -> None:
    assert_same_meaning(portable_bundle(tmp_path / "b", decoder))


@pytest.mark.parametrize("stored", ["bf16", "int8", "int4", "fp8"])
def test_every_weight_type_means_the_same_to_tensorrt(tmp_path: Path, stored: WeightType) -> None:
    made = portable_bundle(tmp_path / "b", family("qwen2"), stored=stored)
    assert_same_meaning(made, "bfloat16" if stored == "bf16" else "float16")


@pytest.mark.parametrize("offsets", [False, True])
def test_the_checkpoints_own_blocks_mean_the_same_to_tensorrt(tmp_path: Path, offsets: bool) -> None:
    decoder = family("llama")
    made = portable_bundle(tmp_path / "b", decoder, with_own_blocks(decoder, 4, offsets=offsets), stored="int4")
    assert_same_meaning(made)


def test_a_wrong_scale_would_be_seen(tmp_path: Path) -> None:
    made = portable_bundle(tmp_path / "b", family("llama"))
    model = portable(made)
    for node in model.graph.node:
        if node.op_type == "Attention":
            node.attribute[0].f *= 2
    made.file(GRAPH).write_bytes(model.SerializeToString())
    wrong = Rewritten(made)
    for node in model.graph.node:
        if node.op_type == "Attention":
            node.attribute[0].f /= 2
    made.file(GRAPH).write_bytes(model.SerializeToString())
    batch = chain_batch(RNG.integers(0, made.spec.vocab_size, (2, 12)).tolist(), [0, 0])
    expected = OrtEngine(made, n_slots=2, threads=1).forward(batch).top_scores
    assert expected is not None
    assert np.abs(wrong.forward(batch)["top_scores"] - expected).max() > 10 * TOLERANCE * np.abs(expected).max()


# ---- form -----------------------------------------------------------------------------------------


def test_the_graph_for_tensorrt_has_its_attention_static_caches_and_no_weights_of_32_bits(tmp_path: Path) -> None:
    made = portable_bundle(tmp_path / "b", family("gemma3"))
    graph = tensorrt_graph(portable(made), "float16", S).graph
    attentions = [n for n in graph.node if n.op_type == "TRT_Attention"]
    assert len(attentions) == made.spec.n_layers
    assert all(list(n.input[4:]) == ["", "attention/key_value_lengths"] for n in attentions)
    for value in [*graph.input, *graph.output]:
        if value.name.startswith(("past_k", "past_v", "present_")):
            assert value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
            assert [d.dim_value for d in value.type.tensor_type.shape.dim][1:] == [2, S, 16]
    wide = [t.name for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT]
    assert all(name.startswith("rope.") for name in wide), wide


def test_codes_are_symmetric_for_tensorrt_and_have_offsets_only_where_the_checkpoint_does(tmp_path: Path) -> None:
    made = portable_bundle(tmp_path / "b", family("llama"), stored="int4")
    kinds = {t.name.rsplit(".", 1)[1]: t.data_type for t in portable(made).graph.initializer if t.external_data}
    assert kinds["int4"] == onnx.TensorProto.INT4
    assert kinds["int8"] == onnx.TensorProto.INT8  # the LM head
    assert kinds["scales"] == onnx.TensorProto.FLOAT16
    assert "zeros" not in kinds
    assert "offsets" not in kinds


def test_the_portable_graph_is_not_changed(tmp_path: Path) -> None:
    model = portable(portable_bundle(tmp_path / "b", family("llama")))
    before = model.SerializeToString()
    tensorrt_graph(model, "float16", S)
    half_graph(model, "bfloat16")
    assert model.SerializeToString() == before


# ---- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "attributes", "told"),
    [
        ("Attention", {"softcap": 50.0}, "layers.0/attn/scores caps its scores"),
        ("TensorScatter", {"mode": "circular"}, "layers.0/attn/cache_k writes a circular cache"),
    ],
)
def test_what_tensorrt_cannot_compute_is_refused_by_name(
    tmp_path: Path, kind: str, attributes: dict[str, Any], told: str
) -> None:
    model = changed(portable(portable_bundle(tmp_path / "b", family("llama"))), attributes, kind)
    with pytest.raises(UnsupportedModel, match=told):
        tensorrt_graph(model, "float16", S)


def test_past_inputs_a_missing_mask_and_copied_caches_are_told_at_once(tmp_path: Path) -> None:
    model = portable(portable_bundle(tmp_path / "b", family("llama")))
    first, second = (n for n in model.graph.node if n.op_type == "Attention")
    first.input.extend(["past_k_0", "past_v_0"])
    del second.input[3:]
    scatter = next(n for n in model.graph.node if n.op_type == "TensorScatter")
    scatter.op_type = "Identity"
    with pytest.raises(UnsupportedModel) as caught:
        tensorrt_graph(model, "float16", S)
    message = str(caught.value)
    assert "layers.0/attn/scores has past or length inputs (past_k_0, past_v_0)" in message
    assert "layers.1/attn/scores has no mask" in message
    assert "present_k_0 is not written in place" in message


def test_a_head_size_without_a_fused_kernel_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(UnsupportedModel, match=r"heads of 24: .* 16, 32, 64, 80, 96, 112, 128, 160, 192, 256 only"):
        require_head_size(declare(head_dim=24))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_width": 257}, "max_width is 257: allowed is 2 to 256"),
        ({"chunk": 64}, "chunk is 64: allowed is 128 or more"),
        ({"n_slots": 0}, "slots is 0: allowed is 1 or more"),
    ],
)
def test_sizes_that_no_profile_can_have_are_refused(options: dict[str, int], told: str) -> None:
    with pytest.raises(ExportError, match=told):
        PlanOptions(**options)  # type: ignore[arg-type]


def test_float32_is_refused_for_tensorrt_with_what_is_allowed() -> None:
    with pytest.raises(ExportError, match=r"--weights fp32 is not possible with --target tensorrt.*fp16, bf16, int8"):
        weights_for("tensorrt", "fp32")
    with pytest.raises(ExportError, match="--weights fp8 is not possible with --target onnx:"):
        weights_for("onnx", "fp8")
    assert weights_for("onnx", None) == "fp32"
    assert weights_for("tensorrt", None) == "fp16"


# ---- profiles -------------------------------------------------------------------------------------


def test_profiles_are_prompt_chunks_of_one_row_and_trees_of_many() -> None:
    prompt, tree = plan_profiles(OPTIONS)
    assert (prompt.name, prompt.rows.most, prompt.width.most) == ("prompt", 1, 128)
    assert (tree.name, tree.rows.most, tree.width.most, tree.scored.most) == ("tree", 8, 16, 16)
    for profile in (prompt, tree):
        for span in (profile.rows, profile.width, profile.scored):
            assert 1 <= span.least <= span.usual <= span.most


@pytest.mark.parametrize("n_slots", [1, 2, 3, 64])
def test_a_tree_profile_always_has_as_many_columns_as_the_builder_needs(n_slots: int) -> None:
    tree = plan_profiles(PlanOptions(n_slots=n_slots, max_width=16))[1]
    assert tree.rows.most * tree.width.most >= 128
    assert tree.width.most >= 16


def test_whatever_a_profile_allows_fits_behind_a_full_slot() -> None:
    for options in (OPTIONS, PlanOptions(n_slots=1, max_width=200, chunk=128)):
        profiles = plan_profiles(options)
        length = cache_length(1000, profiles)
        assert length >= 1000 + max(p.width.most for p in profiles)
        assert length % 64 == 0


def test_shapes_follow_the_axes_by_name() -> None:
    mask = TensorSpec("tree_mask", "bool", ("B", "T", "T"))
    cache = TensorSpec("past_k_0", "float32", ("B", 2, "S", 16))
    _, tree = plan_profiles(OPTIONS)
    assert shape_of(mask, tree, 512, 2) == (8, 16, 16)
    assert shape_of(cache, tree, 512, 0) == (1, 2, 512, 16)
