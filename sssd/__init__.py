"""Training-free speculative decoding for language models exported to ONNX and TensorRT.

Public names only; importing this loads nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sssd.errors import (
    BundleError,
    DatastoreError,
    EngineError,
    ExportError,
    MissingExtra,
    ParityError,
    RequestError,
    RevisionMismatch,
    SpecMismatch,
    SssdError,
    UnsupportedModel,
)

if TYPE_CHECKING:
    from sssd.answer import Completion
    from sssd.config import SamplingParams
    from sssd.constraint import Constraint
    from sssd.export import export_model
    from sssd.llm import LLM
    from sssd.loading import load
    from sssd.text import Message

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "BundleError",
    "Completion",
    "Constraint",
    "DatastoreError",
    "EngineError",
    "ExportError",
    "Message",
    "MissingExtra",
    "ParityError",
    "RequestError",
    "RevisionMismatch",
    "SamplingParams",
    "SpecMismatch",
    "SssdError",
    "UnsupportedModel",
    "export_model",
    "load",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    homes = {
        "LLM": "sssd.llm",
        "load": "sssd.loading",
        "Completion": "sssd.answer",
        "SamplingParams": "sssd.config",
        "Constraint": "sssd.constraint",
        "Message": "sssd.text",
        "export_model": "sssd.export",
    }
    if name not in homes:
        raise AttributeError(f"module 'sssd' has no attribute {name!r}")
    return getattr(import_module(homes[name]), name)
