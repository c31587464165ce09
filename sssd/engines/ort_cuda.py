"""A bundle's graph under ONNX Runtime's CUDA provider, as an executor. Owns its session; knows no cache and no step.

Inputs, outputs and the cache are bound by address, and work goes onto the engine's own stream. Nothing falls back to
the CPU unseen: a session whose products, attention or cache updates stand anywhere but on the GPU is refused. (Shapes
are computed on the host by ONNX Runtime's own choice; those nodes may.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sssd.engines.device import Device, Tensor
from sssd.engines.ort import onnxruntime
from sssd.engines.resident import CacheForm
from sssd.engines.staging import BatchShape
from sssd.errors import BundleError, EngineError
from sssd.spec import GRAPH, Bundle

PROVIDER = "CUDAExecutionProvider"
_TYPES = {"float32": 1, "int32": 6, "int64": 7, "bool": 9, "float16": 10, "bfloat16": 16}  # ONNX's numbers
_OF_SHAPES = {"Shape", "Squeeze", "Unsqueeze", "Range", "Sub", "Concat", "Constant", "Cast"}
_WIDEST = 64  # of the forwards that are captured
_EAGER = "-1"  # a gpu_graph_id: do not capture this run


class OrtExecutor:
    """An Executor over ONNX Runtime on the device's own kind of memory.

    With `cuda_graphs` ONNX Runtime captures narrow forwards that come again, whose widths are then padded to powers of
    two. Raises BundleError for a graph that does not load, EngineError where a part of it would not run on the GPU.
    """

    def __init__(self, bundle: Bundle, device: Device, *, cuda_graphs: bool = False, provider: str = PROVIDER) -> None:
        self._ort = onnxruntime("gpu")
        self._device = device
        self._cuda_graphs = cuda_graphs
        self._form = CacheForm(bundle.spec.kv_dtype, None, 1)
        self._session = self._open(bundle.file(GRAPH), provider)
        self._binding: Any = None
        self._run_options: Any = None
        self._graph_ids: dict[tuple[Tensor, ...], int] = {}  # a captured run holds for its addresses

    @property
    def form(self) -> CacheForm:
        """Any length, and no alignment beyond that of the type."""
        return self._form

    @property
    def largest(self) -> tuple[BatchShape, ...]:
        """There is no limit."""
        return ()

    def fit(self, shape: BatchShape) -> BatchShape:
        """Every shape runs as it is; where runs are captured, there are few widths."""
        if not self._cuda_graphs or shape.width > _WIDEST:
            return shape
        width = 1 << (shape.width - 1).bit_length()
        return shape._replace(width=width, scored=width)

    def is_capturable(self, shape: BatchShape) -> bool:
        """ONNX Runtime allocates while it runs, so only it can capture its runs, and does so unseen."""
        return False

    def bind(self, shape: BatchShape, tensors: Sequence[Tensor]) -> None:
        """Take the addresses; those of the cache are an input and an output at once."""
        self._binding = self._session.io_binding()
        outputs = {output.name for output in self._session.get_outputs()}
        for tensor in tensors:
            bind = self._binding.bind_output if tensor.name in outputs else self._binding.bind_input
            bind(tensor.name, self._device.kind, 0, _TYPES[tensor.dtype], list(tensor.shape), tensor.address)
        self._run_options = self._ort.RunOptions()
        if self._cuda_graphs:
            self._run_options.add_run_config_entry("gpu_graph_id", self._graph_id(shape, tuple(tensors)))

    def _graph_id(self, shape: BatchShape, tensors: tuple[Tensor, ...]) -> str:
        """Tensors that come for the first time run eagerly; from the second time on their run has a number."""
        if shape.width > _WIDEST:
            return _EAGER
        if tensors not in self._graph_ids:
            self._graph_ids[tensors] = len(self._graph_ids) + 1
            return _EAGER
        return str(self._graph_ids[tensors])

    def run(self) -> None:
        """Enqueue the forward."""
        try:
            self._session.run_with_iobinding(self._binding, self._run_options)
        except Exception as e:  # ONNX Runtime's exceptions share no base class
            raise EngineError(f"ONNX Runtime failed: {e}") from e

    def close(self) -> None:
        """Release the session."""
        self._binding = None
        self._session = None

    def _open(self, path: Path, provider: str) -> Any:
        if provider not in self._ort.get_available_providers():
            raise EngineError(
                f"this ONNX Runtime has no {provider}: install it with  pip install 'sssd[gpu]'  (and take the package "
                "onnxruntime off, which hides it), or use --device cpu"
            )
        options = self._ort.SessionOptions()
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        try:
            session = self._ort.InferenceSession(
                path, options, providers=[(provider, self._provider_options(provider))]
            )
        except Exception as e:  # ONNX Runtime's exceptions share no base class
            raise BundleError(f"ONNX Runtime cannot load {path}: {e}") from e
        if session.get_providers()[0] != provider:
            raise EngineError(
                f"ONNX Runtime could not load its {provider}: its CUDA 13 libraries (cuBLAS, cuRAND, cuDNN 9) are "
                "missing or do not fit; `sssd doctor` says more"
            )
        require_assigned(session, provider)
        return session

    def _provider_options(self, provider: str) -> dict[str, str]:
        if provider != PROVIDER:
            return {}
        graphs = {"enable_cuda_graph": "1"} if self._cuda_graphs else {}
        return {"device_id": "0", "user_compute_stream": str(self._device.stream), **graphs}


def require_assigned(session: Any, provider: str) -> None:
    """Refuse a session of which more than shapes runs elsewhere. Raises EngineError naming the operators."""
    elsewhere = Counter(
        node.op_type
        for part in session.get_provider_graph_assignment_info()
        if part.ep_name != provider
        for node in part.get_nodes()
        if node.op_type not in _OF_SHAPES
    )
    if elsewhere:
        told = ", ".join(f"{name} ({n})" for name, n in elsewhere.most_common(5))
        raise EngineError(
            f"ONNX Runtime's {provider} cannot run a part of this graph, which would fall back to the CPU: {told}; use "
            "a newer onnxruntime-gpu, a TensorRT plan, or --device cpu"
        )
