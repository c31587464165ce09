"""What a TensorRT plan in a bundle says about itself, and whether it fits a machine. Knows no TensorRT and no graph.

A plan runs under the TensorRT that built it and no other, on the GPUs that it was built for. It stands in its bundle
beside the portable graph, which stays its CPU twin:

    NAME.plan        the engine, as TensorRT serializes it
    NAME.trt.onnx    the graph that it was built from; its weights are those of weights.safetensors

Tensors of the plan, names and dimensions as in EngineSpec.inputs and outputs, with S = PlanInfo.cache_len throughout:
`input_ids`, `position_ids`, `past_lens`, `logit_rows`, `next_ids`, `top_ids` int64; `tree_mask` bool; `past_*` and
`present_*` PlanInfo.kv_dtype, each pair at one address; `top_scores`, `lse` float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from sssd.errors import ExportError, SpecMismatch

Flavour = Literal["tensorrt", "rtx"]
ProfileName = Literal["prompt", "tree"]
MAX_WIDTH = 256  # as many positions past max_len as the rotary tables cover
LEAST_COLUMNS = (
    128  # most rows times most columns of a profile: RTX 1.7 fails on masks of fewer (32 seen, 64 in bfloat16)
)
PORTABLE = "portable"  # the compute capability of an RTX plan: from 8.0 on, but for those that RTX itself refuses


class Span(NamedTuple):
    """What a profile allows along one axis."""

    least: int
    usual: int  # what kernels are chosen for
    most: int


@dataclass(frozen=True, slots=True)
class PlanProfile:
    """One optimization profile; its index in PlanInfo.profiles is its index in the plan."""

    name: ProfileName  # "prompt": one row, chunks of a prompt; "tree": many rows, narrow
    rows: Span  # B
    width: Span  # T
    scored: Span  # R


@dataclass(frozen=True, slots=True)
class PlanInfo:
    """A plan of the bundle."""

    file: str  # NAME.plan
    graph: str  # NAME.trt.onnx
    flavour: Flavour
    version: str  # of the TensorRT that built it, as the module's __version__ says it
    compute_capability: str  # "8.9", or PORTABLE
    profiles: tuple[PlanProfile, ...]
    n_slots: int  # most rows of a forward
    max_len: int  # most tokens a slot may hold
    cache_len: int  # S: max_len and headroom, so that every width that a profile allows fits behind every past
    max_width: int  # most columns of a row in the tree profile
    chunk: int  # most columns of the one row in the prompt profile
    kv_dtype: str  # float16 or bfloat16; the activations have it too

    def kv_bytes(self, n_layers: int, n_kv_heads: int, head_dim: int) -> int:
        """Bytes of device memory that one slot's KV cache takes."""
        return 2 * n_layers * n_kv_heads * self.cache_len * head_dim * 2

    def rebuild_command(self, bundle: str) -> str:
        """The command that builds this plan again, in place, from the graph and weights of its own bundle."""
        return (
            f"sssd export {bundle} --target tensorrt --flavour {self.flavour} --slots {self.n_slots} "
            f"--max-len {self.max_len} --max-width {self.max_width} --chunk {self.chunk} --out {bundle} --force"
        )


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a user may choose about a plan; the command line's defaults are these."""

    flavour: Flavour = "tensorrt"
    n_slots: int = 8  # most rows of a forward
    max_width: int = 32  # most columns of a row where many rows run: forced columns and draft tree
    chunk: int = 256  # most columns of the one row that reads its prompt

    def __post_init__(self) -> None:
        for name, value, ok, allowed in (
            ("slots", self.n_slots, self.n_slots >= 1, "1 or more"),
            ("max_width", self.max_width, 2 <= self.max_width <= MAX_WIDTH, f"2 to {MAX_WIDTH}"),
            ("chunk", self.chunk, self.chunk >= LEAST_COLUMNS, f"{LEAST_COLUMNS} or more"),
        ):
            if not ok:
                raise ExportError(f"{name} is {value}: allowed is {allowed}")


class Machine(NamedTuple):
    """The TensorRT and the GPU that a plan is to run on."""

    flavour: Flavour
    version: str
    compute_capability: str  # "9.0"


def require_runs(plan: PlanInfo, machine: Machine, *, bundle: str) -> None:
    """Raise SpecMismatch, with the command that rebuilds the plan, where it was built for another machine."""
    built = (plan.flavour, plan.version, plan.compute_capability)
    fits = plan.compute_capability in (PORTABLE, machine.compute_capability)
    if fits and (plan.flavour, plan.version) == (machine.flavour, machine.version):
        return
    raise SpecMismatch(
        f"{plan.file} was built with {_told(*built)}; here is {_told(*machine)}: rebuild it here with  "
        f"{plan.rebuild_command(bundle)}"
    )


_NAMES: dict[Flavour, str] = {"tensorrt": "TensorRT", "rtx": "TensorRT-RTX"}


def _told(flavour: Flavour, version: str, capability: str) -> str:
    where = "any GPU that it knows" if capability == PORTABLE else f"compute capability {capability}"
    return f"{_NAMES[flavour]} {version} for {where}"
