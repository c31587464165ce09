"""Holds the fake TensorRT to the real bindings: every class, enum value, method and parameter name of it is theirs."""

from __future__ import annotations

import inspect
import re
from typing import Any

from tests.helpers import fake_trt

CLASSES = ("Runtime", "ICudaEngine", "IExecutionContext", "ILogger")
ENUMS = ("TensorIOMode", "DataType", "ExecutionContextAllocationStrategy")
OWN = {"graph"}  # of the fake only


def differences(module: Any) -> list[str]:
    """What the fake has and the module lacks, or calls otherwise."""
    found = []
    for name in CLASSES:
        fake, real = getattr(fake_trt, name), getattr(module, name, None)
        if real is None:
            found.append(f"{name} is missing")
            continue
        members = [m for m in vars(fake) if not m.startswith("_") and m not in OWN]
        found += [f"{name}.{m}: {why}" for m in members if (why := _member(vars(fake)[m], getattr(real, m, None)))]
    for name in ENUMS:
        members = getattr(getattr(module, name, None), "__members__", {})
        found += [f"{name}.{value.name} is missing" for value in getattr(fake_trt, name) if value.name not in members]
    if not isinstance(getattr(module, "__version__", None), str):
        found.append("__version__ is missing")
    return found


def _member(fake: Any, real: Any) -> str | None:
    if real is None:
        return "missing"
    if not inspect.isfunction(fake):
        return None
    wanted = [p for p in inspect.signature(fake).parameters if p != "self"]
    overloads = [re.findall(r"(\w+):", line.split(") ->")[0])[1:] for line in _signatures(real)]
    if not overloads or any(o[: len(wanted)] == wanted for o in overloads):
        return None
    return f"called with {wanted}, but takes {' or '.join(map(str, overloads))}"


def _signatures(real: Any) -> list[str]:
    """pybind11 writes them into the docstring, one a line where a method is overloaded."""
    return [line for line in (real.__doc__ or "").splitlines() if re.match(r"(\d+\. )?\w+\(self", line.strip())]


def rtx_only(module: Any) -> list[str]:
    """What the engine asks of RTX beyond the rest."""
    return [] if hasattr(module.IExecutionContext, "is_stream_capturable") else ["is_stream_capturable is missing"]
