"""What this machine can run and what a bundle needs of it, as values. Owns what is asked and what is advised.

Knows no library: each is asked by a probe in a process of its own, so that whatever happens there ends in a line here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from sssd.bench.machine import this_machine
from sssd.config import LoopConfig
from sssd.doctor.probes import Answer, examine
from sssd.engines.choose import DeviceName, choose_device
from sssd.spec import WEIGHTS, Bundle, open_bundle

Probe = Callable[[str], Answer]

PROVIDERS = ("CPUExecutionProvider", "CUDAExecutionProvider")
FLAVOURS = ("tensorrt", "rtx")
_PACKAGES = {"tensorrt": ("tensorrt", "tensorrt-cu13", "tensorrt-cu12"), "rtx": ("tensorrt-rtx",)}
_ORT = ("onnxruntime", "onnxruntime-gpu")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the machine or an installed library."""

    name: str
    works: bool
    told: str  # its version, or why it does not work


@dataclass(frozen=True, slots=True)
class GpuFound:
    """A GPU that the driver sees."""

    name: str
    compute_capability: str
    memory: int  # bytes


@dataclass(frozen=True, slots=True)
class Needs:
    """What a bundle needs."""

    name: str
    runs_on: DeviceName  # what it is made for
    weights: int  # bytes
    kv_slot: int  # bytes of a full slot's KV cache
    n_slots: int
    total: int  # bytes: weights and all slots
    memory: int  # bytes that this machine has there; 0 where it has no such device
    slots_that_fit: int


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that `sssd doctor` says."""

    cpu: str
    cores: int
    memory: int  # bytes of main memory
    parts: tuple[Part, ...]
    gpus: tuple[GpuFound, ...]
    bundle: Needs | None
    advice: tuple[str, ...]  # what to do, one line each; empty where nothing is missing


def examine_machine(bundle: str | Path | None = None, *, n_slots: int | None = None, probe: Probe = examine) -> Report:
    """Ask every part of the machine, and hold a bundle against it. Takes seconds.

    Raises BundleError for a bundle that cannot be opened, and nothing else.
    """
    opened = None if bundle is None else open_bundle(bundle)
    driver = probe("driver")
    gpus = tuple(_gpu(found) for found in driver.facts or ())
    parts = [Part("NVIDIA driver", driver.works, driver.told)]
    parts += [_provider(name, probe) for name in PROVIDERS]
    parts += [_flavour(name, probe) for name in FLAVOURS]
    machine, memory = this_machine(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    slots = n_slots or LoopConfig.n_slots + LoopConfig.n_warm
    needs = None if opened is None else _needs(opened, slots, memory, gpus)
    advice = (*_advice(parts, gpus), *([] if opened is None or needs is None else _bundle_advice(opened, needs, parts)))
    return Report(machine.cpu, machine.cores, memory, tuple(parts), gpus, needs, advice)


def _gpu(found: dict[str, object]) -> GpuFound:
    memory = found["memory"]
    assert isinstance(memory, int)
    return GpuFound(str(found["name"]), str(found["compute_capability"]), memory)


def _installed(*packages: str) -> str | None:
    """The version of the first that is installed."""
    for package in packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return None


def _provider(name: str, probe: Probe) -> Part:
    title = f"ONNX Runtime, {name.removesuffix('ExecutionProvider')}"
    if _installed(*_ORT) is None:
        return Part(title, False, "not installed")
    found = probe(f"onnxruntime:{name}")
    return Part(title, found.works, found.told)


def _flavour(name: str, probe: Probe) -> Part:
    title = "TensorRT-RTX" if name == "rtx" else "TensorRT"
    if _installed(*_PACKAGES[name]) is None:
        return Part(title, False, "not installed")
    found = probe(f"tensorrt:{name}")
    return Part(title, found.works, f"{found.told}; {found.facts}" if found.facts else found.told)


def _needs(bundle: Bundle, n_slots: int, memory: int, gpus: tuple[GpuFound, ...]) -> Needs:
    spec, plan, runs_on = bundle.spec, bundle.manifest.plan, choose_device(bundle, None)
    sizes = {entry.name: entry.size for entry in bundle.manifest.files}
    has = memory if runs_on == "cpu" else max((gpu.memory for gpu in gpus), default=0)
    if plan is None:
        weights, kv_slot = sizes.get(WEIGHTS, sum(sizes.values())), spec.max_len * spec.kv_bytes_per_token()
    else:
        weights, kv_slot = sizes[plan.file], plan.kv_bytes(spec.n_layers, spec.n_kv_heads, spec.head_dim)
    fit = max(0, has - weights) // kv_slot
    return Needs(spec.name, runs_on, weights, kv_slot, n_slots, weights + n_slots * kv_slot, has, fit)


def _advice(parts: list[Part], gpus: tuple[GpuFound, ...]) -> list[str]:
    driver, cpu, cuda, tensorrt, rtx = parts
    advice = []
    if not cpu.works and cpu.told == "not installed":
        advice.append("to run bundles on the CPU:  pip install 'sssd[cpu]'")
    elif not cpu.works:
        advice.append(
            f"ONNX Runtime is broken ({cpu.told}): install it again,  pip install --force-reinstall onnxruntime"
        )
    if _installed(_ORT[0]) and _installed(_ORT[1]):
        advice.append("onnxruntime hides onnxruntime-gpu:  pip uninstall onnxruntime onnxruntime-gpu, then install one")
    if not driver.works:
        advice.append(f"no GPU can be used: {driver.told}")
        return advice
    if gpus and not cuda.works:
        advice.append(f"to run bundles on the GPU with ONNX Runtime ({cuda.told}):  pip install 'sssd[gpu]'")
    if gpus and not tensorrt.works and not rtx.works:
        advice.append("to run TensorRT plans:  pip install 'sssd[tensorrt]', or 'sssd[rtx]' on RTX GPUs")
    return advice


def _bundle_advice(bundle: Bundle, needs: Needs, parts: list[Part]) -> list[str]:
    advice, plan = [], bundle.manifest.plan
    if needs.slots_that_fit < needs.n_slots:
        where = "memory" if needs.runs_on == "cpu" else "device memory"
        advice.append(
            f"{needs.n_slots} full slots need {needs.total >> 20} MiB and there are {needs.memory >> 20} MiB of "
            f"{where}: {needs.slots_that_fit} slots fit; use fewer, or export with a smaller --max-len"
        )
    if plan is not None:
        part = parts[4 if plan.flavour == "rtx" else 3]
        if not part.works:
            advice.append(
                f"{plan.file} needs {part.name} {plan.version} ({part.told}):  pip install 'sssd[{plan.flavour}]'"
            )
        elif part.told.split(";")[0] != plan.version:
            advice.append(
                f"{plan.file} was built with {part.name} {plan.version}, installed is {part.told}: rebuild it with  "
                f"{plan.rebuild_command(str(bundle.path))}"
            )
    return advice
