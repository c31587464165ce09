"""The portable graph, run by the engine that serves, computes what the reference computes; its form is as promised."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from sssd.architecture import Decoder, Layer
from sssd.engines.ort import OrtEngine
from sssd.engines.reference import ReferenceEngine
from sssd.engines.stored import StoredWeights
from sssd.export.nodes import OPSET
from sssd.spec import GRAPH, WEIGHTS, Bundle, WeightType
from sssd.types import EngineOutput, Float32
from tests.helpers.batches import chain_batch, tree_batch
from tests.helpers.random_decoders import FEATURES, LLAMA, VOCAB, RandomWeights, bundle, with_own_blocks

RNG = np.random.default_rng(0)
EVERY_WEIGHT_TYPE = pytest.mark.parametrize("stored", ["fp32", "fp16", "bf16", "int8", "int4"])
TREE = [-1, 0, 1, 0, 3, 3, 1]


def reference_of(made: Bundle, n_slots: int = 2) -> ReferenceEngine:
    assert made.manifest.decoder is not None
    return ReferenceEngine(made.manifest.decoder, StoredWeights(made.file(WEIGHTS)).load, n_slots=n_slots)


def logits(out: EngineOutput) -> Float32:
    assert out.logits is not None
    return out.logits.copy()


def assert_like_the_reference(made: Bundle, *, atol: float = 1e-4) -> None:
    """Chains past every window, then a tree behind ragged pasts."""
    graph, reference = OrtEngine(made, n_slots=2, threads=1, exact=True), reference_of(made)
    chains = chain_batch(RNG.integers(0, VOCAB, (2, 12)).tolist(), [0, 0])
    np.testing.assert_allclose(logits(graph.forward(chains)), logits(reference.forward(chains)), atol=atol)
    trees = tree_batch(RNG.integers(0, VOCAB, (2, 7)).tolist(), [TREE, TREE[::1]], [12, 9])
    found, expected = graph.forward(trees), reference.forward(trees)
    np.testing.assert_allclose(logits(found), logits(expected), atol=atol)
    np.testing.assert_array_equal(found.next_ids, logits(found).argmax(axis=-1))


@pytest.mark.parametrize("decoder", FEATURES.values(), ids=FEATURES)
def test_every_feature_of_a_decoder_is_in_the_graph(tmp_path: Path, decoder: Decoder) -> None:
    assert_like_the_reference(bundle(tmp_path / "b", decoder))


@EVERY_WEIGHT_TYPE
@pytest.mark.parametrize("decoder", [FEATURES["tied"], FEATURES["all biases"]], ids=["tied", "with biases"])
def test_every_weight_type_computes_with_its_dequantized_weights(
    tmp_path: Path, decoder: Decoder, stored: WeightType
) -> None:
    assert_like_the_reference(bundle(tmp_path / "b", decoder, stored=stored))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_the_checkpoints_own_blocks_are_kept_exactly(tmp_path: Path, bits: int, offsets: bool, tied: bool) -> None:
    decoder = replace(LLAMA, tied=tied)
    weights = with_own_blocks(decoder, bits, offsets=offsets)
    made = bundle(tmp_path / "b", decoder, weights, stored="int4" if bits == 4 else "int8")
    read = StoredWeights(made.file(WEIGHTS))
    for name in weights.own:
        np.testing.assert_allclose(read.load(name), weights.load(name), rtol=0, atol=1e-6)
    assert_like_the_reference(made)


def test_four_bit_blocks_of_a_checkpoint_serve_int8_too(tmp_path: Path) -> None:
    weights = with_own_blocks(LLAMA, 4, offsets=True)
    made = bundle(tmp_path / "b", LLAMA, weights, stored="int8")
    read = StoredWeights(made.file(WEIGHTS)).load("layers.0.q.weight")
    np.testing.assert_allclose(read, weights.load("layers.0.q.weight"), rtol=0, atol=1e-6)


def test_a_matrix_that_does_not_divide_into_blocks_stays_float32_and_is_noted(tmp_path: Path) -> None:
    made = bundle(tmp_path / "b", replace(LLAMA, intermediate=72), stored="int4")
    assert [note for note in made.manifest.notes if "layers.1.down.weight" in note]
    assert_like_the_reference(made)


def test_topk_scores_are_the_best_logits_in_order_and_their_log_sum(tmp_path: Path) -> None:
    made = bundle(tmp_path / "b", LLAMA, scores="topk")
    batch = chain_batch(RNG.integers(0, VOCAB, (2, 5)).tolist(), [0, 0])
    out = OrtEngine(made, n_slots=2, threads=1).forward(batch)
    expected = logits(reference_of(made).forward(batch))
    k = made.spec.n_scores
    assert out.top_ids is not None
    assert out.top_scores is not None
    assert out.lse is not None
    np.testing.assert_allclose(out.top_scores, -np.sort(-expected, axis=-1)[..., :k], atol=1e-4)
    np.testing.assert_allclose(np.take_along_axis(expected, out.top_ids, axis=-1), out.top_scores, atol=1e-4)
    np.testing.assert_allclose(out.lse, np.log(np.exp(expected).sum(axis=-1)), atol=1e-4)
    np.testing.assert_array_equal(out.next_ids, out.top_ids[..., 0])


# ---- the form of the graph ------------------------------------------------------------------------


def optimized(made: Bundle, tmp_path: Path) -> Counter[tuple[str, int]]:
    """(operator, bits) of the nodes that ONNX Runtime runs."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3  # it warns that the file suits this machine only
    onnxruntime.InferenceSession(str(made.file(GRAPH)), options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(tmp_path / "optimized.onnx", load_external_data=False).graph.node
    return Counter((n.op_type, next((a.i for a in n.attribute if a.name == "bits"), 0)) for n in nodes)


@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize(("stored", "bits"), [("int8", 8), ("int4", 4)])
def test_onnx_runtime_fuses_every_quantized_product(
    tmp_path: Path, stored: WeightType, bits: int, offsets: bool
) -> None:
    decoder = replace(LLAMA, tied=True)
    weights = with_own_blocks(decoder, bits, offsets=offsets)
    found = optimized(bundle(tmp_path / "b", decoder, weights, stored=stored), tmp_path)
    linears = 7 * len(decoder.layers)
    expected = {8: linears + 1} if bits == 8 else {4: linears, 8: 1}  # the LM head has 8 bits
    assert {b: n for (kind, b), n in found.items() if kind == "MatMulNBits"} == expected
    assert found["DequantizeLinear", 0] == 0


def model(made: Bundle) -> Any:
    return onnx.load(made.file(GRAPH), load_external_data=False)


@EVERY_WEIGHT_TYPE
def test_the_graph_is_valid_and_standard(tmp_path: Path, stored: WeightType) -> None:
    made = bundle(tmp_path / "b", FEATURES["windows and ropes by layer"], stored=stored)
    onnx.checker.check_model(str(made.file(GRAPH)), full_check=True)
    proto = model(made)
    assert [(o.domain, o.version) for o in proto.opset_import] == [("", OPSET)]
    assert {n.domain for n in proto.graph.node} == {""}


def test_every_attention_has_a_mask_and_no_softcap(tmp_path: Path) -> None:
    attentions = [n for n in model(bundle(tmp_path / "b", LLAMA)).graph.node if n.op_type == "Attention"]
    assert len(attentions) == 2
    for node in attentions:
        assert len(node.input) == 4
        assert [a.name for a in node.attribute] == ["scale"]


def test_a_mask_is_made_once_for_all_layers_of_its_window(tmp_path: Path) -> None:
    decoder = replace(LLAMA, layers=tuple(Layer(0, window) for window in (None, 4, 4, None, 6, 4)))
    nodes = model(bundle(tmp_path / "b", decoder)).graph.node
    masks = [n.input[3] for n in nodes if n.op_type == "Attention"]
    assert masks == [f"mask/{m}" for m in ("all", "window_4", "window_4", "all", "window_6", "window_4")]
    assert [n.op_type for n in nodes].count("GatherElements") == 2


def test_node_names_are_paths_and_unique(tmp_path: Path) -> None:
    names = [n.name for n in model(bundle(tmp_path / "b", LLAMA, stored="int4")).graph.node]
    assert len(set(names)) == len(names)
    assert {"layers.1/attn/q/weight", "layers.0/mlp/down/product", "head/logits", "mask/all"} <= set(names)


def test_inputs_and_outputs_are_those_of_the_manifest(tmp_path: Path) -> None:
    made = bundle(tmp_path / "b", LLAMA, scores="topk")
    graph = model(made).graph
    for infos, specs in ((graph.input, made.spec.inputs), (graph.output, made.spec.outputs)):
        for info, spec in zip(infos, specs, strict=True):
            tensor = info.type.tensor_type
            assert info.name == spec.name
            assert onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type) == np.dtype(spec.dtype)
            assert tuple(d.dim_param or d.dim_value for d in tensor.shape.dim) == spec.dims


def test_weights_lie_in_the_weights_file_and_a_tied_head_is_stored_once(tmp_path: Path) -> None:
    made = bundle(tmp_path / "b", replace(LLAMA, tied=True))
    for tensor in model(made).graph.initializer:
        outside = {e.key: e.value for e in tensor.external_data}
        assert outside.get("location", WEIGHTS) == WEIGHTS
        assert bool(outside) != bool(tensor.raw_data or tensor.int64_data or tensor.float_data), tensor.name
    shapes = LLAMA.weight_shapes()
    numbers = sum(int(np.prod(s)) for name, s in shapes.items() if name != "lm_head.weight")
    tables = 2 * (64 + 256) * 8
    assert 4 * (numbers + tables) <= made.file(WEIGHTS).stat().st_size < 4 * (numbers + tables) + 8192


def test_exporting_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (bundle(tmp_path / name, LLAMA, RandomWeights(LLAMA), stored="int4") for name in ("a", "b"))
    assert first.manifest.files == second.manifest.files
