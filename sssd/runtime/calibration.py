"""What a calibration is and where it lives: calibration.json beside a bundle's manifest.

Knows no engine: who measures makes the values, who serves asks for the curve. The file is no part of the bundle (the
manifest does not list it), because it says as much about a machine as about a model.
"""

from __future__ import annotations

import math
import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import msgspec

from sssd.errors import BundleError
from sssd.runtime.costs import CostCurve, measured
from sssd.spec import WEIGHTS, Bundle

CALIBRATION = "calibration.json"
REVISION = 1  # rises when the file's meaning changes


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What the figures hold for; all of it must be the same for them to be used."""

    cpu: str
    cores: int
    device: str
    threads: int  # as the engine was told; 0 = its own choice
    onnxruntime: str  # version, or "absent"
    weights: str  # sha256 of the bundle's weights, or of all its files where it has no such file


@dataclass(frozen=True, slots=True)
class Calibration:
    """The content of calibration.json."""

    revision: int
    fingerprint: Fingerprint
    batches: tuple[int, ...]
    widths: tuple[int, ...]
    contexts: tuple[int, ...]  # one or two
    seconds: tuple[tuple[tuple[float, ...], ...], ...]  # medians, [contexts, batches, widths]
    rounds: int  # measurements of every point
    spread: float  # median over the points of (third quartile - first quartile) / median

    def curve(self) -> CostCurve:
        """The curve through the medians."""
        return measured(self.batches, self.widths, self.contexts, self.seconds)


class FoundCurve(NamedTuple):
    """A bundle's calibration, or why there is none to use."""

    curve: CostCurve | None
    reason: str  # one line; empty when there is a curve


def fingerprint(bundle: Bundle, *, device: str, threads: int) -> Fingerprint:
    """This machine, with this bundle, on this device."""
    hashes = {entry.name: entry.sha256 for entry in bundle.manifest.files}
    return Fingerprint(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        device=device,
        threads=threads,
        onnxruntime=_version("onnxruntime-gpu") or _version("onnxruntime") or "absent",
        weights=hashes.get(WEIGHTS) or " ".join(hashes.values()),
    )


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def save_calibration(bundle: Bundle, calibration: Calibration) -> Path:
    """Write calibration.json beside the manifest, by renaming. Raises BundleError when the place is not writable."""
    path = bundle.file(CALIBRATION)
    staged = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        staged.write_bytes(msgspec.json.format(msgspec.json.encode(calibration), indent=2) + b"\n")
        staged.replace(path)
    except OSError as e:
        raise BundleError(f"cannot write {path}: {e.strerror}; calibrate a copy of the bundle") from None
    return path


def load_calibration(bundle: Bundle, expected: Fingerprint) -> FoundCurve:
    """The bundle's cost curve, if it was measured under the expected fingerprint; else the reason why not."""
    path = bundle.file(CALIBRATION)
    again = f"run `sssd calibrate {bundle.path}`"
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Calibration)
    except FileNotFoundError:
        return FoundCurve(None, f"{bundle.path} is not calibrated, costs are learned while serving: {again}")
    except OSError as e:
        return FoundCurve(None, f"{path} cannot be read ({e.strerror}): {again}")
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        return FoundCurve(None, f"{path} is damaged ({e}): {again}")
    problem = _problem(found, expected)
    return FoundCurve(None, f"{path} is not used: {problem}; {again}") if problem else FoundCurve(found.curve(), "")


def _problem(found: Calibration, expected: Fingerprint) -> str | None:
    if found.revision != REVISION:
        return f"it has revision {found.revision}, this sssd reads {REVISION}"
    if found.fingerprint.weights != expected.weights:
        return "it was made with other weights"
    for name in ("cpu", "cores", "device", "threads", "onnxruntime"):
        was, now = getattr(found.fingerprint, name), getattr(expected, name)
        if was != now:
            return f"it was made with {name} {was}, here it is {now}"
    return None if _is_sound(found) else "its figures are damaged"


def _is_sound(found: Calibration) -> bool:
    axes = (found.contexts, found.batches, found.widths)
    ascending = all(list(axis) == sorted(set(axis)) and axis and axis[0] >= 0 for axis in axes)
    shaped = len(found.seconds) == len(found.contexts) <= 2 and all(
        len(grid) == len(found.batches) and all(len(line) == len(found.widths) for line in grid)
        for grid in found.seconds
    )
    times = [t for grid in found.seconds for line in grid for t in line]
    return ascending and found.batches[0] > 0 < found.widths[0] and shaped and all(0 < t < math.inf for t in times)
