"""Tensors of safetensors files, single or sharded, read one at a time.

Owns the file format (an 8-byte little-endian length, a JSON header, the data) and its checks; knows no model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sssd.errors import ExportError, MissingExtra
from sssd.export.naming import RowRange
from sssd.export.source import Blocks
from sssd.types import TensorShape

_ITEM_SIZES = {"F32": 4, "F16": 2, "BF16": 2}  # the dtypes that weights are read in
_MAX_HEADER = 100 * 2**20  # the format's own limit
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class _Entry(NamedTuple):
    path: Path
    dtype: str
    shape: TensorShape
    start: int  # of the data, in bytes from the start of the file


class SafetensorsTensors:
    """RawTensors of a checkpoint directory. Holds headers only; files are opened for each read."""

    def __init__(self, entries: Mapping[str, _Entry]) -> None:
        self._entries = entries

    def shapes(self) -> dict[str, TensorShape]:
        """Every tensor and its shape."""
        return {name: entry.shape for name, entry in self._entries.items()}

    def unreadable(self) -> dict[str, str]:
        """Tensors of a dtype other than F32, F16 and BF16."""
        return {name: entry.dtype for name, entry in self._entries.items() if entry.dtype not in _ITEM_SIZES}

    def load(self, name: str, rows: RowRange) -> npt.NDArray[Any]:
        """These rows as stored: float32, float16 or ml_dtypes.bfloat16."""
        entry = self._entries[name]
        width = math.prod(entry.shape[1:])
        count = (rows.stop - rows.start) * width
        offset = entry.start + rows.start * width * _ITEM_SIZES[entry.dtype]
        data = np.fromfile(entry.path, dtype=_dtype(entry.dtype), count=count, offset=offset)
        return data.reshape(rows.stop - rows.start, *entry.shape[1:])

    def blocks(self, name: str, rows: RowRange) -> Blocks | None:
        """Always None: nothing is stored in quantized blocks here."""
        return None


def open_safetensors(directory: Path) -> SafetensorsTensors:
    """The tensors of model.safetensors, or of the shards that model.safetensors.index.json lists.

    Reads headers only. Raises ExportError when files are absent (all listed), cut short or malformed.
    """
    entries: dict[str, _Entry] = {}
    for path in _files(directory):
        for name, entry in _read_header(path).items():
            if name in entries:
                raise ExportError(
                    f"tensor {name} is both in {entries[name].path} and in {path}: each may be there once"
                )
            entries[name] = entry
    return SafetensorsTensors(entries)


def _files(directory: Path) -> list[Path]:
    index = directory / INDEX
    if not index.exists():
        if (directory / SINGLE).exists():
            return [directory / SINGLE]
        others = sorted(
            p.name for p in directory.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".gguf", ".safetensors")
        )
        found = f"it holds {', '.join(others)}" if others else "it holds no weights"
        raise ExportError(f"{directory} has neither {SINGLE} nor {INDEX} ({found}): save the model as safetensors")
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(weight_map.values()))
        paths = [directory / name for name in names]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExportError(
            f"{index} is no index of safetensors shards: a JSON object with weight_map is needed"
        ) from error
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise ExportError(f"{directory} lacks {len(missing)} of the shards that {INDEX} lists: {', '.join(missing)}")
    return paths


def _read_header(path: Path) -> dict[str, _Entry]:
    """Every tensor of one file, checked to lie inside it. Raises ExportError when the file is not what it says."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER):
            raise ExportError(f"{path} is no safetensors file or is cut short: its header does not fit in {size} bytes")
        raw = file.read(length)
    try:
        header = json.loads(raw)
        header.pop("__metadata__", None)
        entries = {name: _entry(path, fields, 8 + length) for name, fields in header.items()}
        ends = {name: 8 + length + int(fields["data_offsets"][1]) for name, fields in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ExportError(f"{path} has a malformed safetensors header: download or save it again") from error
    _check_extents(path, entries, ends, 8 + length, size)
    return entries


def _entry(path: Path, fields: Mapping[str, Any], data_start: int) -> _Entry:
    shape = tuple(int(n) for n in fields["shape"])
    return _Entry(path, str(fields["dtype"]), shape, data_start + int(fields["data_offsets"][0]))


def _check_extents(
    path: Path, entries: Mapping[str, _Entry], ends: Mapping[str, int], data_start: int, size: int
) -> None:
    if any(entry.start < data_start for entry in entries.values()):
        raise ExportError(f"{path} has a malformed safetensors header: tensors cannot begin before the data")
    needed = max(ends.values(), default=0)
    if needed > size:
        raise ExportError(f"{path} is cut short: it has {size} bytes, its tensors need {needed}")
    wrong = [
        name
        for name, entry in entries.items()
        if entry.dtype in _ITEM_SIZES and ends[name] - entry.start != math.prod(entry.shape) * _ITEM_SIZES[entry.dtype]
    ]
    if wrong:
        raise ExportError(f"{path} gives sizes that do not fit the shapes of {', '.join(wrong)}: save it again")


def _dtype(name: str) -> np.dtype[Any]:
    if name != "BF16":
        return np.dtype({"F32": "<f4", "F16": "<f2"}[name])
    try:
        import ml_dtypes
    except ImportError as error:
        raise MissingExtra("ml_dtypes", "export") from error
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype
