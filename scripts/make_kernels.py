"""Compile the device kernels to the PTX that the package ships: `make kernels`; with --check, compare only.

PTX for compute capability 8.0 runs on every later GPU, where the driver compiles it when the engine starts. The first
line holds the sha256 of the source, so that a test without nvcc can tell whether the two belong together.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "sssd" / "engines" / "kernels" / "commit.cu"
PTX = SOURCE.with_suffix(".ptx")


def compiled(nvcc: str) -> str:
    """The PTX that this source and nvcc make, below a line with the source's hash."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / PTX.name
        subprocess.run([nvcc, "-ptx", "-arch=compute_80", "-O3", "-o", out, SOURCE.name], cwd=SOURCE.parent, check=True)
        return f"// source sha256: {hashlib.sha256(SOURCE.read_bytes()).hexdigest()}\n{out.read_text('ascii')}"


def main() -> None:
    """Write or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when the shipped PTX is not what nvcc makes")
    parser.add_argument("--nvcc", default="nvcc")
    options = parser.parse_args()
    made = compiled(options.nvcc)
    if not options.check:
        staged = PTX.with_suffix(".ptx.new")
        staged.write_text(made, "ascii")
        staged.replace(PTX)
    elif PTX.read_text("ascii") != made:
        sys.exit(f"{PTX} is not what nvcc makes of {SOURCE.name}: run  make kernels")
    print(PTX)


if __name__ == "__main__":
    main()
