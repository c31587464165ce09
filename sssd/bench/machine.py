"""Where a benchmark ran. Owns the reading of the machine's facts; knows nothing of models."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Machine:
    """A computer, and how busy it was."""

    cpu: str
    cores: int  # that this process may use
    system: str
    load: float | None  # of the last minute; None where the system does not tell


def this_machine() -> Machine:
    """The machine as it is now."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return Machine(_cpu(), cores, f"{platform.system()} {platform.release()}", load)


def _cpu() -> str:
    """The processor's name; its architecture where the system does not tell."""
    if _CPUINFO.exists():
        for line in _CPUINFO.read_text("utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
