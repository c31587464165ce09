"""Asks one part of the machine, in a process of its own: `python -m sssd.doctor.probes NAME` prints one line of JSON.

Libraries that find no driver, or another one than they were built for, may end the process that loads them; what asks
(`examine`) then reads the signal. Knows nothing of what is done with an answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

_SECONDS = 90  # loading CUDA's libraries for the first time is slow

# an ONNX model that negates one float32, as bytes: ONNX Runtime is there where the package onnx need not be
_NEGATE = bytes.fromhex(
    "080812003a320a0b0a017812017922034e65671201675a0f0a0178120a0a08080112040a020801620f0a0179120a0a08080112040a0208014204"
    "0a00100d"
)


class Answer(NamedTuple):
    """What a probe found."""

    works: bool
    told: str  # a version, or why it does not work
    facts: Any = None  # what else it says, as JSON has it


def driver() -> Answer:
    """The NVIDIA driver and its GPUs, without cuda-python where that is absent."""
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        return Answer(False, "not asked: the package cuda-bindings is not installed")
    from sssd.engines.cuda import probe

    found = probe()
    gpus = [gpu._asdict() for gpu in found.gpus]
    return Answer(found.problem is None, found.problem or f"CUDA {found.driver}", gpus)


def onnxruntime(provider: str) -> Answer:
    """Whether a session on this provider really runs on it; a provider's being listed says nothing."""
    import numpy as np

    ort = import_module("onnxruntime")
    if provider not in ort.get_available_providers():
        return Answer(False, "not in this build")
    options = ort.SessionOptions()
    options.log_severity_level = 4  # what it would log is in the answer
    if provider != "CPUExecutionProvider":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    session = ort.InferenceSession(_NEGATE, options, providers=[provider])
    (result,) = session.run(None, {"x": np.ones(1, np.float32)})
    assert result[0] == -1
    used = session.get_providers()[0]
    return Answer(used == provider, ort.__version__ if used == provider else f"falls back to {used}")


def tensorrt(flavour: str) -> Answer:
    """Whether the flavour's module loads and, where there is a driver, starts."""
    from sssd.engines.trt import load_tensorrt

    trt = load_tensorrt("rtx" if flavour == "rtx" else "tensorrt")
    if not driver().works:  # starting it without one would end this process
        return Answer(True, str(trt.__version__), "it can build plans; running them needs the NVIDIA driver")
    runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
    return Answer(runtime is not None, str(trt.__version__))


def answer(name: str) -> Answer:
    """The probe of that name: driver, onnxruntime:PROVIDER, tensorrt:FLAVOUR."""
    kind, _, detail = name.partition(":")
    try:
        if kind == "driver":
            return driver()
        return onnxruntime(detail) if kind == "onnxruntime" else tensorrt(detail)
    except Exception as e:  # whatever a library raises is its answer
        return Answer(False, " ".join(str(e).split()) or type(e).__name__)


def examine(name: str, *, seconds: float = _SECONDS, command: tuple[str, ...] = ()) -> Answer:
    """Run a probe in a process of its own. Never raises for what happens there; `command` is for tests."""
    run = [*command, name] if command else [sys.executable, "-m", "sssd.doctor.probes", name]
    try:
        done = subprocess.run(run, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return Answer(False, f"gave no answer within {seconds:.0f} s")
    if done.returncode < 0:
        return Answer(False, f"crashed with signal {-done.returncode} when it was loaded")
    lines = done.stdout.decode(errors="replace").splitlines()
    try:
        return Answer(*json.loads(lines[-1]))
    except (IndexError, ValueError, TypeError):
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        return Answer(False, f"ended with status {done.returncode}: {last[0]}")


if __name__ == "__main__":
    kept = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    found = answer(sys.argv[1])
    os.write(kept, json.dumps(found).encode() + b"\n")
