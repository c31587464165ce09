"""A TensorRT plan as an executor. Owns every call of TensorRT that runs one; knows no cache and no step.

One wrapper serves `tensorrt` (10.15 and later, 11) and `tensorrt_rtx`: of both it uses what they have in common. A
`CudaDevice` must be open before the module is touched: without a driver, a TensorRT runtime ends the process.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from sssd.engines.device import Device, Tensor
from sssd.engines.resident import CacheForm
from sssd.engines.staging import BatchShape
from sssd.errors import BundleError, EngineError, MissingExtra
from sssd.plan import Flavour, Machine, PlanInfo, PlanProfile, require_runs
from sssd.spec import Bundle

MODULES: dict[Flavour, str] = {"tensorrt": "tensorrt", "rtx": "tensorrt_rtx"}
_DTYPES = {
    "float32": "FLOAT",
    "float16": "HALF",
    "bfloat16": "BF16",
    "int32": "INT32",
    "int64": "INT64",
    "bool": "BOOL",
}
_ALIGNMENT = 256  # what TensorRT asks of addresses
_KEPT_LINES = 5  # of its log, for errors


def load_tensorrt(flavour: Flavour) -> Any:
    """The flavour's module. Raises MissingExtra, or EngineError where it is installed and does not load."""
    name = MODULES[flavour]
    if find_spec(name) is None:
        raise MissingExtra(name, flavour)
    try:
        return import_module(name)
    except Exception as e:  # missing libraries come as ImportError, OSError or worse
        raise EngineError(
            f"{name} is installed but does not load: {e}; install it again, `sssd doctor` says more"
        ) from e


class TrtExecutor:
    """An Executor over one plan: a context a profile, which share their scratch memory, since one runs at a time.

    `trt` is the module of the plan's flavour. Raises SpecMismatch for a plan from elsewhere, with the command that
    rebuilds it; BundleError for a plan that is not what its manifest says; EngineError, OutOfMemory.
    """

    def __init__(self, bundle: Bundle, plan: PlanInfo, device: Device, trt: Any) -> None:
        here = Machine(plan.flavour, trt.__version__, device.compute_capability)
        require_runs(plan, here, bundle=str(bundle.path))
        self._plan = plan
        self._device = device
        self._trt = trt
        self._log = _logger(trt)
        self._runtime = trt.Runtime(self._log)
        self._engine = self._deserialize(bundle)
        _require_io(trt, self._engine, bundle, plan)
        self._contexts = self._make_contexts()
        self._bound: Any = None

    @property
    def form(self) -> CacheForm:
        """As the plan was built for."""
        return CacheForm(self._plan.kv_dtype, self._plan.cache_len, _ALIGNMENT)

    @property
    def largest(self) -> tuple[BatchShape, ...]:
        """The largest shape of each profile."""
        return tuple(BatchShape(p.rows.most, p.width.most, p.scored.most) for p in self._plan.profiles)

    def fit(self, shape: BatchShape) -> BatchShape:
        """Trees are padded to powers of two, prompts run as they are. Raises EngineError naming the profiles."""
        for profile in self._in_order():
            fitted = _fitted(profile, shape)
            if fitted is not None:
                return fitted
        have = "; ".join(_told(p) for p in self._plan.profiles)
        raise EngineError(
            f"{shape.rows} rows of {shape.width} columns, {shape.scored} scored, fit no profile of {self._plan.file} "
            f"({have}): lower --slots or --max-draft-tokens, or build the plan with larger ones"
        )

    def is_capturable(self, shape: BatchShape) -> bool:
        """Trees are, where TensorRT does not object."""
        index = self._profile(shape)
        if self._plan.profiles[index].name != "tree":
            return False
        context = self._contexts[index]
        objects = getattr(context, "is_stream_capturable", None)  # RTX compiles while it runs, unless told not to
        return objects is None or bool(objects(self._device.stream))

    def bind(self, shape: BatchShape, tensors: Sequence[Tensor]) -> None:
        """Set the shapes of the inputs and all addresses on the profile's context."""
        context = self._bound = self._contexts[self._profile(shape)]
        for tensor in tensors:
            is_input = self._engine.get_tensor_mode(tensor.name) == self._trt.TensorIOMode.INPUT
            if is_input and not context.set_input_shape(tensor.name, tensor.shape):
                raise EngineError(f"TensorRT does not take {tensor.name} as {list(tensor.shape)}: {self._log.tail()}")
            if not context.set_tensor_address(tensor.name, tensor.address):
                raise EngineError(f"TensorRT does not take the address of {tensor.name}: {self._log.tail()}")
        missing = context.infer_shapes()
        if missing:
            raise EngineError(f"TensorRT lacks the shapes of {', '.join(missing)}: {self._log.tail()}")

    def run(self) -> None:
        """Enqueue the forward."""
        if not self._bound.execute_async_v3(self._device.stream):
            raise EngineError(f"TensorRT could not enqueue the forward: {self._log.tail()}")

    def close(self) -> None:
        """Release contexts, engine and runtime, in this order."""
        self._bound = None
        self._contexts = []
        self._engine = None
        self._runtime = None

    def _deserialize(self, bundle: Bundle) -> Any:
        path = bundle.file(self._plan.file)
        with path.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as plan:
            engine = self._runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise BundleError(
                f"TensorRT does not take {path}: {self._log.tail()}; rebuild it here with  "
                f"{self._plan.rebuild_command(str(bundle.path))}"
            )
        return engine

    def _make_contexts(self) -> list[Any]:
        engine, strategy = self._engine, self._trt.ExecutionContextAllocationStrategy.USER_MANAGED
        sizes = [engine.get_device_memory_size_for_profile_v2(i) for i in range(len(self._plan.profiles))]
        scratch = self._device.allocate(max(*sizes, _ALIGNMENT))
        contexts = []
        for i, size in enumerate(sizes):
            context = engine.create_execution_context(strategy)
            if context is None or not context.set_optimization_profile_async(i, self._device.stream):
                raise EngineError(f"TensorRT made no context for profile {i}: {self._log.tail()}")
            context.set_device_memory(scratch, max(size, _ALIGNMENT))
            contexts.append(context)
        self._device.synchronize()
        return contexts

    def _in_order(self) -> list[PlanProfile]:
        """Trees first: what fits both runs where forwards are captured."""
        return sorted(self._plan.profiles, key=lambda p: p.name != "tree")

    def _profile(self, shape: BatchShape) -> int:
        profile = next(p for p in self._in_order() if _fitted(p, shape) == shape)
        return self._plan.profiles.index(profile)


def _fitted(profile: PlanProfile, shape: BatchShape) -> BatchShape | None:
    """The shape as this profile runs it, or None where it does not fit."""
    if not profile.rows.least <= shape.rows <= profile.rows.most:
        return None
    width, scored = shape.width, shape.scored
    if profile.name == "tree":
        width = min(1 << (width - 1).bit_length(), max(profile.width.most, width))
        scored = min(width, max(profile.scored.most, scored))
    width, scored = max(width, profile.width.least), max(scored, profile.scored.least)
    fits = width <= profile.width.most and scored <= profile.scored.most
    return BatchShape(shape.rows, width, scored) if fits else None


def _told(profile: PlanProfile) -> str:
    rows = "1 row" if profile.rows.most == 1 else f"up to {profile.rows.most} rows"
    return f"{profile.name}: {rows} of up to {profile.width.most} columns, {profile.scored.most} scored"


def _logger(trt: Any) -> Any:
    """A logger that keeps the last warnings and errors; it must outlive what it is given to."""

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.lines: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if int(severity) <= int(trt.ILogger.WARNING):
                self.lines = [*self.lines[1 - _KEPT_LINES :], str(message)]

        def tail(self) -> str:
            return " | ".join(self.lines) or "it gives no reason"

    return Log()


def _require_io(trt: Any, engine: Any, bundle: Bundle, plan: PlanInfo) -> None:
    """The plan's tensors are those of the bundle, and the cache is written in place. Raises BundleError."""
    spec = bundle.spec
    names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    wanted = {t.name: t.dtype for t in (*spec.inputs, *spec.outputs)}
    for name in wanted:
        if name.startswith(("past_k", "past_v", "present_")):
            wanted[name] = plan.kv_dtype
    wrong = [f"{name} is missing" for name in sorted(set(wanted) - set(names))]
    wrong += [f"{name} is unknown" for name in sorted(set(names) - set(wanted))]
    for name in set(names) & set(wanted):
        if engine.get_tensor_dtype(name) != getattr(trt.DataType, _DTYPES[wanted[name]]):
            wrong.append(f"{name} is {engine.get_tensor_dtype(name)}, not {wanted[name]}")
        if name.startswith("present_") and engine.get_aliased_input_tensor(name) != name.replace("present", "past"):
            wrong.append(f"{name} is not written in place")
    if engine.num_optimization_profiles != len(plan.profiles):
        wrong.append(f"it has {engine.num_optimization_profiles} profiles, not {len(plan.profiles)}")
    if wrong:
        raise BundleError(
            f"{bundle.file(plan.file)} is not what its manifest says: {'; '.join(wrong[:4])}; rebuild it with  "
            f"{plan.rebuild_command(str(bundle.path))}"
        )
