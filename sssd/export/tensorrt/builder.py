"""One builder for `tensorrt` and `tensorrt_rtx`: parse, check, set the profiles, build, write. Runs in one process.

Knows no bundle: it is told which graph to build and what the network must look like. It needs no GPU for RTX; full
TensorRT tries its kernels on the GPU at hand. Errors come back as ExportError with TensorRT's own reason in one line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from sssd.errors import ExportError, MissingExtra
from sssd.export.tensorrt.checks import network_problems
from sssd.export.tensorrt.profiles import shape_of
from sssd.plan import Flavour, PlanInfo
from sssd.spec import EngineSpec

MODULES: dict[Flavour, str] = {"tensorrt": "tensorrt", "rtx": "tensorrt_rtx"}
EXTRAS: dict[Flavour, str] = {"tensorrt": "tensorrt", "rtx": "rtx"}
LEAST_VERSIONS: dict[Flavour, tuple[int, int]] = {"tensorrt": (11, 0), "rtx": (1, 7)}
BuildProgress = Callable[[str, int, int], None]  # (phase, steps done, in all)


@dataclass(frozen=True, slots=True)
class BuildJob:
    """One plan to build."""

    directory: str  # where the graph and its weights lie, and the plan goes
    plan: PlanInfo
    spec: EngineSpec  # tensors of the portable graph
    timing_cache: str | None  # file of kernel timings to read and write; None where the flavour has none


def tensorrt_module(flavour: Flavour) -> Any:
    """The module of a flavour. Raises MissingExtra."""
    try:
        return import_module(MODULES[flavour])
    except ImportError:
        raise MissingExtra(MODULES[flavour], EXTRAS[flavour]) from None


def build_plan(job: BuildJob, progress: BuildProgress) -> None:
    """Build the job's plan file. Raises ExportError; writes nothing then."""
    trt = tensorrt_module(job.plan.flavour)
    log = _logger(trt)
    try:
        builder = trt.Builder(log)
    except TypeError:  # what the bindings make of a null pointer
        raise ExportError(f"{MODULES[job.plan.flavour]} does not start: {_last(log)}") from None
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    _parse(trt, network, log, Path(job.directory, job.plan.graph))
    problems = network_problems(trt, network, job.spec, job.plan, log.warnings)
    if problems:
        raise ExportError(f"TensorRT read {job.plan.graph} otherwise than it was written: {'; '.join(problems)}")
    config = builder.create_builder_config()
    monitor = _monitor(trt, progress)
    config.progress_monitor = monitor
    _add_profiles(builder, config, job)
    cache = _TimingCache(config, job.timing_cache)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise ExportError(f"TensorRT cannot build {job.plan.graph}: {_last(log)}")
    Path(job.directory, job.plan.file).write_bytes(memoryview(plan))
    cache.save()


def _parse(trt: Any, network: Any, log: Any, path: Path) -> None:
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(str(path)):
        errors = [parser.get_error(i) for i in range(parser.num_errors)]
        told = [f"{e.node_name() or 'the graph'} ({e.node_operator() or 'no operator'}): {e.desc()}" for e in errors]
        raise ExportError(f"TensorRT cannot read {path.name}: {_one_line('; '.join(told) or _last(log))}")


def _add_profiles(builder: Any, config: Any, job: BuildJob) -> None:
    for profile in job.plan.profiles:
        made = builder.create_optimization_profile()
        for tensor in job.spec.inputs:
            made.set_shape(tensor.name, *(shape_of(tensor, profile, job.plan.cache_len, i) for i in range(3)))
        if config.add_optimization_profile(made) < 0:
            raise ExportError(f"TensorRT refuses the {profile.name} profile: {profile}")


class _TimingCache:
    """Kernel timings of earlier builds on this GPU; full TensorRT only."""

    def __init__(self, config: Any, path: str | None) -> None:
        self._config, self._path = config, None if path is None else Path(path)
        if self._path is not None:
            known = self._path.read_bytes() if self._path.exists() else b""
            config.set_timing_cache(config.create_timing_cache(known), False)

    def save(self) -> None:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            beside = self._path.with_suffix(".new")
            beside.write_bytes(memoryview(self._config.get_timing_cache().serialize()))
            beside.replace(self._path)


def _logger(trt: Any) -> Any:
    class Logger(trt.ILogger):  # type: ignore[misc]
        """Keeps what matters: warnings by name for the checks, errors for the one line that the user sees."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.warnings: list[str] = []
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity == trt.ILogger.Severity.WARNING:
                self.warnings.append(message)
            elif severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.errors.append(message)

    return Logger()


def _monitor(trt: Any, progress: BuildProgress) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        """Tells the outermost phase; inner ones come and go in milliseconds."""

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.outermost: dict[str, int] = {}

        def phase_start(self, name: str, parent: str | None, n_steps: int) -> None:
            if parent is None:
                self.outermost[name] = n_steps

        def step_complete(self, name: str, step: int) -> bool:
            if name in self.outermost:
                progress(name, step + 1, self.outermost[name])
            return True

        def phase_finish(self, name: str) -> None:
            if name in self.outermost:
                progress(name, self.outermost[name], self.outermost[name])

    return Monitor()


def _last(log: Any) -> str:
    return _one_line(log.errors[-1]) if log.errors else "it gave no reason"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:600]
