"""A stand-in for TensorRT's runtime module: a "plan" names a bundle, whose portable graph ONNX Runtime runs in place.

Classes, methods and parameters are named as in the real bindings, which tests hold it to. It is as strict as they are
said to be: shapes inside of the profile, addresses for all tensors, aligned and in device memory, present where past
is, scratch memory given, nothing but the run itself while a stream is captured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import onnxruntime

from sssd.engines.device import Tensor, item_bytes
from sssd.plan import PlanInfo
from sssd.spec import GRAPH, Bundle, open_bundle
from sssd.types import TensorShape
from tests.helpers.host_device import HostDevice

PLAN = b"fake plan of "
VERSION = "11.4.0.106"
_TYPES = {"float32": 1, "int64": 7, "bool": 9}  # ONNX's numbers


class Severity(IntEnum):
    INTERNAL_ERROR = 0
    ERROR = 1
    WARNING = 2
    INFO = 3
    VERBOSE = 4


class ILogger:
    Severity = Severity
    WARNING = Severity.WARNING

    def log(self, severity: Severity, msg: str) -> None:
        raise NotImplementedError


class TensorIOMode(IntEnum):
    NONE = 0
    INPUT = 1
    OUTPUT = 2


class DataType(IntEnum):
    FLOAT = 0
    HALF = 1
    INT32 = 3
    BOOL = 4
    BF16 = 7
    INT64 = 8


class ExecutionContextAllocationStrategy(IntEnum):
    STATIC = 0
    ON_PROFILE_CHANGE = 1
    USER_MANAGED = 2


NAMES = {"float32": DataType.FLOAT, "float16": DataType.HALF, "int64": DataType.INT64, "bool": DataType.BOOL}


@dataclass
class FakeTrt:
    """The module. Faults are switched on by a test."""

    device: HostDevice
    plan: PlanInfo
    refuses: str | None = None  # what it logs while it gives no engine
    not_aliased: str | None = None
    run_fails: bool = False
    scratch: tuple[int, ...] = (4096, 512)
    is_rtx: bool = False
    capturable: bool = True
    runs: list[tuple[int, TensorShape]] = field(default_factory=list)  # (profile, shape of input_ids)
    __version__: str = VERSION
    ILogger = ILogger
    TensorIOMode = TensorIOMode
    DataType = DataType
    ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy

    def Runtime(self, logger: ILogger) -> Runtime:  # noqa: N802
        return Runtime(logger, self)


class Runtime:
    def __init__(self, logger: ILogger, module: FakeTrt) -> None:
        self._logger = logger
        self._module = module

    def deserialize_cuda_engine(self, serialized_engine: Any) -> ICudaEngine | None:
        text = bytes(memoryview(serialized_engine))
        if self._module.refuses is not None or not text.startswith(PLAN):
            self._logger.log(Severity.INFO, "reading")
            self._logger.log(Severity.ERROR, self._module.refuses or "Magic tag does not match")
            return None
        bundle = open_bundle(text[len(PLAN) :].decode())
        return ICudaEngine(self._module, self._logger, bundle)


class ICudaEngine:
    def __init__(self, module: FakeTrt, logger: ILogger, bundle: Bundle) -> None:
        self._module, self._logger, self._bundle = module, logger, bundle
        spec = bundle.spec
        self._tensors = {t.name: t for t in (*spec.inputs, *spec.outputs)}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(bundle.file(GRAPH), options, providers=["CPUExecutionProvider"])

    @property
    def num_io_tensors(self) -> int:
        return len(self._tensors)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self._module.plan.profiles)

    def get_tensor_name(self, index: int) -> str:
        return list(self._tensors)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        is_input = name in {t.name for t in self._bundle.spec.inputs}
        return TensorIOMode.INPUT if is_input else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return NAMES[self._tensors[name].dtype]

    def get_aliased_input_tensor(self, name: str) -> str | None:
        aliased = name.startswith("present") and name != self._module.not_aliased
        return name.replace("present", "past") if aliased else None

    def get_device_memory_size_for_profile_v2(self, profile_index: int) -> int:
        return self._module.scratch[profile_index]

    def create_execution_context(self, strategy: ExecutionContextAllocationStrategy) -> IExecutionContext:
        assert strategy == ExecutionContextAllocationStrategy.USER_MANAGED
        kind = RtxExecutionContext if self._module.is_rtx else IExecutionContext
        return kind(self._module, self, self._logger)

    def graph(self) -> tuple[Any, dict[str, Any]]:
        """For contexts: the session, and the tensors by name."""
        return self._session, self._tensors


class IExecutionContext:
    def __init__(self, module: FakeTrt, engine: ICudaEngine, logger: ILogger) -> None:
        self._module, self._engine, self._logger = module, engine, logger
        self._session, self._tensors = engine.graph()
        self._profile = 0
        self._memory = (0, 0)
        self._shapes: dict[str, TensorShape] = {}
        self._settled = False  # whether a run has settled what its shapes ask for
        self._addresses: dict[str, int] = {}

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        assert stream_handle == self._module.device.stream
        self._profile = profile_index
        return True

    def set_device_memory(self, memory: int, size: int) -> None:
        assert size >= self._module.scratch[self._profile]
        self._module.device.at(memory, size)
        self._memory = (memory, size)

    def set_input_shape(self, name: str, shape: TensorShape) -> bool:
        self._require_no_capture()
        profile = self._module.plan.profiles[self._profile]
        spans = {"B": profile.rows, "T": profile.width, "R": profile.scored}
        for dim, n in zip(self._tensors[name].dims, shape, strict=True):
            fixed = self._module.plan.cache_len if dim == "S" else dim
            if n != fixed if isinstance(fixed, int) else not spans[fixed].least <= n <= spans[fixed].most:
                self._logger.log(Severity.ERROR, f"{name}: {shape} is outside of profile {self._profile}")
                return False
        self._settled = self._settled and self._shapes[name] == tuple(shape)
        self._shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self._require_no_capture()
        assert memory % 256 == 0
        self._addresses[name] = memory
        return True

    def infer_shapes(self) -> list[str]:
        inputs = [name for name in self._tensors if self._engine.get_tensor_mode(name) == TensorIOMode.INPUT]
        return [name for name in inputs if name not in self._shapes]

    def execute_async_v3(self, stream_handle: int) -> bool:
        device = self._module.device
        assert stream_handle == device.stream
        if self._module.run_fails:
            self._logger.log(Severity.ERROR, "enqueueV3: Error Code 1: Cuda Runtime (illegal address)")
            return False
        assert self._memory[1] >= self._module.scratch[self._profile]
        tensors = [self._tensor(name) for name in self._tensors]
        for tensor in tensors:
            device.at(tensor.address, tensor.n_bytes)
            if tensor.name.startswith("present"):
                assert tensor.address == self._addresses[tensor.name.replace("present", "past")]
        assert self._settled or device.capturing is None, "what a change of shapes asks for cannot be captured"
        self._settled = True
        profile = self._profile
        device.enqueue(lambda: self._run(profile, tensors))
        return True

    def _tensor(self, name: str) -> Tensor:
        rows, width = self._shapes["input_ids"]
        axes = {"B": rows, "T": width, "R": self._shapes["logit_rows"][1], "S": self._module.plan.cache_len}
        dims = tuple(axes[d] if isinstance(d, str) else d for d in self._tensors[name].dims)
        assert self._shapes.get(name, dims) == dims
        return Tensor(name, self._tensors[name].dtype, dims, self._addresses[name])

    def _run(self, profile: int, tensors: list[Tensor]) -> None:
        binding = self._session.io_binding()
        for t in tensors:
            assert item_bytes(t.dtype)
            is_input = self._engine.get_tensor_mode(t.name) == TensorIOMode.INPUT
            bind = binding.bind_input if is_input else binding.bind_output
            bind(t.name, "cpu", 0, _TYPES[t.dtype], list(t.shape), t.address)
        self._session.run_with_iobinding(binding)
        self._module.runs.append((profile, tensors[0].shape))

    def _require_no_capture(self) -> None:
        assert self._module.device.capturing is None, "only the run itself can be captured"


class RtxExecutionContext(IExecutionContext):
    """RTX's context, which may object to being captured."""

    def is_stream_capturable(self, stream: int) -> bool:
        return self._module.capturable
