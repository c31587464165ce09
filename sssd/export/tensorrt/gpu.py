"""The GPU that full TensorRT builds for, asked of the driver alone: TensorRT itself crashes where there is none."""

from __future__ import annotations

import ctypes

from sssd.errors import ExportError

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


def compute_capability() -> str:
    """That of the first GPU, such as "9.0". Raises ExportError where there is no driver or no GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise _no_gpu("no NVIDIA driver is installed") from None
    device, parts = ctypes.c_int(), (ctypes.c_int(), ctypes.c_int())
    errors = [driver.cuInit(0), driver.cuDeviceGet(ctypes.byref(device), 0)]
    for part, attribute in zip(parts, (_MAJOR, _MINOR), strict=True):
        errors.append(driver.cuDeviceGetAttribute(ctypes.byref(part), attribute, device))
    if any(errors):
        raise _no_gpu(f"its driver sees no GPU (CUDA error {next(e for e in errors if e)})")
    return f"{parts[0].value}.{parts[1].value}"


def _no_gpu(why: str) -> ExportError:
    return ExportError(
        f"--flavour tensorrt builds on the GPU that the plan will run on, and on this machine {why}: build it there, "
        "or use --flavour rtx, which needs none"
    )
