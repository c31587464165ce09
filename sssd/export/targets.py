"""What a bundle is made for. Owns which weight types each target takes and in what form they are stored for it.

onnx        ONNX Runtime on a CPU: float32 arithmetic, all logits, since host memory is shared
onnx-cuda   ONNX Runtime on an NVIDIA GPU: float16 arithmetic and KV cache, only the best scores leave the device
tensorrt    the same for TensorRT: symmetric codes, and a plan beside the portable graph, which stays float32
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sssd.architecture import Decoder
from sssd.errors import ExportError
from sssd.export.half import HalfType
from sssd.export.source import WeightSource
from sssd.export.storage import EMBEDDING, Form
from sssd.spec import ScoreKind, WeightType

Target = Literal["onnx", "onnx-cuda", "tensorrt"]


@dataclass(frozen=True, slots=True)
class TargetRules:
    """What a target takes; the first weight type is its default."""

    weights: tuple[WeightType, ...]
    scores: ScoreKind
    why_not: str  # what to say of the others


TARGETS: dict[Target, TargetRules] = {
    "onnx": TargetRules(("fp32", "fp16", "bf16", "int8", "int4"), "logits", "ONNX Runtime's CPU multiplies no others"),
    "onnx-cuda": TargetRules(("fp16", "int8", "int4"), "topk", "arithmetic is float16 there"),
    "tensorrt": TargetRules(
        ("fp16", "bf16", "int8", "int4", "fp8"), "topk", "TensorRT has no fused attention in float32"
    ),
}


_WIDE = ("gemma3", "gemma3_text")  # families whose activations are known to pass float16's range


def range_notes(form: Form, decoder: Decoder) -> tuple[str, ...]:
    """What a user should know of the numbers, for the manifest."""
    if form.floats != "float16" or decoder.family not in _WIDE:
        return ()
    return (f"activations of {decoder.family} may pass float16's range: prefer --target tensorrt --weights bf16",)


def weights_for(target: Target, weights: WeightType | None) -> WeightType:
    """The weight type asked for, or the target's default. Raises ExportError for one that the target cannot take."""
    rules = TARGETS[target]
    if weights is not None and weights not in rules.weights:
        raise ExportError(
            f"--weights {weights} is not possible with --target {target}: {rules.why_not}; "
            f"allowed are {', '.join(rules.weights)}"
        )
    return weights or rules.weights[0]


def form_for(target: Target, weights: WeightType, decoder: Decoder, source: WeightSource) -> Form:
    """How weights are stored for a target.

    Quantized weights compute in the checkpoint's own 16-bit type: what was made in bfloat16 may pass float16's range.
    """
    if target == "onnx":
        return Form()
    if target == "onnx-cuda":
        return Form("float16")
    wide = decoder.family in _WIDE or str(source.load(EMBEDDING).dtype) == "bfloat16"
    own: HalfType = "bfloat16" if wide else "float16"
    halves: dict[WeightType, HalfType] = {"fp16": "float16", "bf16": "bfloat16"}
    return Form(halves.get(weights, own), signed=True)
