"""Builds a plan in a process of its own. Owns the process; knows neither graphs nor TensorRT's calls.

TensorRT holds several copies of the weights while it builds, cannot be interrupted, and ends the process where it meets
what it did not expect. In a process of its own the memory comes back, Ctrl-C ends it at once, and a crash is an error.
The child reads a BuildJob as JSON from its standard input and tells its progress on a pipe, one JSON line a report.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from typing import Literal

import msgspec

from sssd.errors import ExportError, SssdError
from sssd.export.tensorrt.builder import BuildJob, BuildProgress, build_plan


class _Report(msgspec.Struct):
    kind: Literal["progress", "error"]
    text: str
    done: int = 0
    of: int = 0


def build_apart(job: BuildJob, progress: BuildProgress) -> None:
    """Build a plan in a child process. Raises ExportError; an interrupt ends the child too."""
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            [sys.executable, "-m", "sssd.export.tensorrt.worker", str(writing)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=said,
            pass_fds=(writing,),
            start_new_session=True,  # Ctrl-C reaches the parent alone, which ends the child
        )
        os.close(writing)
        try:
            assert child.stdin is not None
            with suppress(BrokenPipeError), child.stdin:  # a child that is gone says why below
                child.stdin.write(msgspec.json.encode(job))
            _follow(reading, progress)
            child.wait()
        finally:
            child.kill()
            child.wait()
        if child.returncode:
            said.seek(0)
            told = _told(said.read().decode(errors="replace"))
            raise ExportError(f"TensorRT ended while it built the plan ({_ending(child.returncode)}): {told}")


def _follow(reading: int, progress: BuildProgress) -> None:
    """Pass reports on until the child closes its end."""
    with os.fdopen(reading, "rb") as reports:
        for line in reports:
            report = msgspec.json.decode(line, type=_Report)
            if report.kind == "error":
                raise ExportError(report.text)
            progress(report.text, report.done, report.of)


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def _told(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing; the machine may be out of memory"


def main() -> None:
    """The child: one job, then its end."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=BuildJob)
    with os.fdopen(int(sys.argv[1]), "wb", buffering=0) as pipe:

        def tell(report: _Report) -> None:
            pipe.write(msgspec.json.encode(report) + b"\n")

        try:
            build_plan(job, lambda phase, done, of: tell(_Report("progress", phase, done, of)))
        except SssdError as e:
            tell(_Report("error", str(e)))


if __name__ == "__main__":
    main()
