"""What crosses the process border between an export and its torch side, as JSON. Knows neither side."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import msgspec

GRAPH_FILE = "traced.onnx"  # as the exporter wrote it, perhaps with files beside it
FACTS_FILE = "facts.json"  # a Traced
ANSWERS_FILE = "answers.npy"  # float32 [sequences of parity.planned, V]: what the model itself says

MODEL_PART, PROBE_PART = "model", "probe"  # directories that the torch side fills


@dataclass(frozen=True, slots=True)
class TraceJob:
    """What the torch side is asked for."""

    version: str  # sssd's own on the asking side
    source: str  # a Hugging Face directory
    out: str  # an existing directory
    n_layers: int | None  # keep this many, None = all
    max_len: int | None  # tokens that a slot is to hold, None = all positions of the model


@dataclass(frozen=True, slots=True)
class Traced:
    """What the torch side says of a model that it traced."""

    model_type: str
    exporter: str  # "dynamo" or "optimum"
    refused: str | None  # why torch's exporter refused, where Optimum's was taken
    vocab_size: int
    n_layers: int
    n_kv_heads: int
    head_dim: int
    max_len: int  # tokens that a slot can hold
    n_matrix_numbers: int  # elements of all parameters of two dimensions and more
    tools: dict[str, str]  # package -> version


class Message(msgspec.Struct, tag=True):
    """A line that the torch side writes to its standard output."""


class Stage(Message):
    """Work went on."""

    name: str
    done: int
    of: int


class Refused(Message):
    """The model cannot be exported; nothing more will come."""

    reason: str


AnyMessage = Stage | Refused


def own_version() -> str:
    """The version of sssd on this side."""
    return str(import_module("sssd").__version__)


def read_facts(part: Path) -> Traced:
    """The facts of a part that the torch side has filled."""
    return msgspec.json.decode((part / FACTS_FILE).read_bytes(), type=Traced)
