"""The interpreter that has torch, transformers and Optimum: finding it, giving it a job, hearing from it.

Owns the process; knows nothing of what happens inside. That interpreter may be this one; usually it is that of a
virtual environment of its own, since its packages are older than ours.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import msgspec

from sssd.errors import ExportError, MissingExtra, UnsupportedModel
from sssd.export.optimum.job import AnyMessage, Refused, Stage, TraceJob

Progress = Callable[[str, int, int], None]  # (stage, done so far, in all)

_NEEDED = ("torch", "transformers", "onnxscript", "onnx")
_HOW = (
    "make an environment for it:  python -m venv optimum && optimum/bin/pip install 'sssd[optimum]'  "
    "and give  --optimum-python optimum/bin/python"
)


def interpreter(given: Path | None) -> Path:
    """The interpreter to use: the given one, or this one where it has what is needed.

    Raises MissingExtra, or ExportError for one that is not there.
    """
    if given is not None:
        if not given.is_file():
            raise ExportError(f"--optimum-python {given} is no file: give the python of an environment; or {_HOW}")
        return given.absolute()  # not resolved: a virtual environment's python is a link
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise MissingExtra(", ".join(missing), "optimum", hint=_HOW)
    return Path(sys.executable)


def run(job: TraceJob, python: Path, progress: Progress) -> None:
    """Let the interpreter fill the job's directory. Raises UnsupportedModel with its reason, or ExportError.

    The process ends with this call, however that ends.
    """
    with TemporaryFile("w+", encoding="utf-8") as errors:
        with _start(python, errors) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                with suppress(BrokenPipeError):  # it died before it read its job; its status tells
                    process.stdin.write(msgspec.json.encode(job))
                    process.stdin.close()
                refused = _listen(process.stdout, progress)
                status = process.wait()
            finally:
                process.kill()
        if refused is not None:
            raise UnsupportedModel(f"{job.source} cannot be exported through Optimum: {refused}")
        if status != 0:
            raise ExportError(_failure(python, status, errors))


def _start(python: Path, errors: IO[str]) -> subprocess.Popen[bytes]:
    command = [str(python), "-m", "sssd.export.optimum.worker"]
    try:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
    except OSError as error:
        raise ExportError(f"{python} cannot be run: {error.strerror}; {_HOW}") from error


def _listen(lines: IO[bytes], progress: Progress) -> str | None:
    """Pass the stages on; the reason where the model is refused."""
    for line in lines:
        message = msgspec.json.decode(line, type=AnyMessage)
        match message:
            case Stage(name, done, of):
                progress(name, done, of)
            case Refused(reason):
                return reason
    return None


def _failure(python: Path, status: int, errors: IO[str]) -> str:
    errors.seek(0)
    said = errors.read().strip().splitlines()
    last = said[-1] if said else "it said nothing"
    if "ModuleNotFoundError" in last:
        return f"{python} lacks what tracing needs ({last}): {_HOW}"
    ended = (
        f"was ended by signal {-status}, perhaps for want of memory" if status < 0 else f"ended with status {status}"
    )
    return f"the tracing process {ended}: {last}"
