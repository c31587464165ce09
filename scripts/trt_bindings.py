"""Hold the TensorRT engine's calls to the real bindings of full TensorRT, on a machine that has none of its libraries.

    python scripts/trt_bindings.py tensorrt-cu13-bindings==11.4.0.106 tensorrt-cu12-bindings==10.16.1.11

The wheel of the bindings is fetched by pip; the three libraries that it loads are replaced by empty ones (needs gcc),
so that the module imports and its classes, enums and signatures can be read. Nothing of it runs. Prints what differs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

_STUBS = (
    "createInferBuilder_INTERNAL",
    "createInferRefitter_INTERNAL",
    "createInferRuntime_INTERNAL",
    "createNvOnnxParser_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL",
    "getBuilderPluginRegistry",
    "getNvOnnxParserVersion",
    "getPluginRegistry",
    "initLibNvInferPlugins",
)
_READ = """
import sys; sys.path[:0] = sys.argv[1:]
import tensorrt_bindings as trt
from tests.helpers.trt_api import differences
found = differences(trt)
print(trt.__version__, "differs:" if found else "has all that the engine calls", *found, sep="\\n  " if found else " ")
sys.exit(bool(found))
"""


def check(requirement: str, scratch: Path) -> int:
    """0 when the bindings have everything."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", scratch]
    subprocess.run([*command, requirement], check=True)
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(scratch / "wheel")
    major = wheel.name.split("-")[1].split(".")[0]
    home = scratch / "wheel" / "tensorrt_bindings"
    source = scratch / "stubs.c"
    source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in _STUBS))
    for library in ("libnvinfer", "libnvinfer_plugin", "libnvonnxparser"):
        name = f"{library}.so.{major}"
        subprocess.run(["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", home / name, source], check=True)
    root = Path(__file__).parents[1]
    return subprocess.run(
        [sys.executable, "-c", _READ, scratch / "wheel", root], env={"LD_LIBRARY_PATH": str(home)}, check=False
    ).returncode


def main() -> int:
    """Check every requirement given."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    failed = 0
    for requirement in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as scratch:
            failed |= check(requirement, Path(scratch))
    return failed


if __name__ == "__main__":
    sys.exit(main())
