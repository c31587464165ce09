"""What was learned about the drafter's scores: its file, and how far predictions and outcomes agree.

The learning itself is the native core's (csrc/confidence.h); this file knows neither trees nor requests.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sssd.errors import DatastoreError, RevisionMismatch
from sssd.types import Source

Float64 = npt.NDArray[np.float64]

FORMAT = "sssd-confidence"
REVISION = 2
LEARNED_SOURCES = (Source.CONTEXT, Source.DATASTORE, Source.LIVE, Source.PREDICTION)
N_BINS = 27
STATE_SHAPE = (len(LEARNED_SOURCES) + 1, N_BINS, 3)  # trials, hits, summed chances; by source, then whole paths


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Draft nodes whose score fell between `low` and `high`."""

    low: float
    high: float
    n_nodes: int
    predicted: float  # their mean score
    observed: float  # the share whose whole path was accepted


def reliability_table(table: Float64) -> tuple[ReliabilityBin, ...]:
    """Bins that hold any node, from the core's float64 [bins, 3]: nodes, summed scores, accepted."""
    n_bins = len(table)
    return tuple(
        ReliabilityBin(b / n_bins, (b + 1) / n_bins, int(n), predicted / n, observed / n)
        for b, (n, predicted, observed) in enumerate(table.tolist())
        if n > 0
    )


def save(path: Path, states: Mapping[str, Float64]) -> None:
    """Write each namespace's state (float64 STATE_SHAPE) beside `path` and rename. Raises DatastoreError."""
    for state in states.values():
        assert state.shape == STATE_SHAPE
    text = json.dumps(
        {
            "format": FORMAT,
            "revision": REVISION,
            "namespaces": {name: state.tolist() for name, state in sorted(states.items())},
        }
    )
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, "utf-8")
        beside.replace(path)
    except OSError as e:
        beside.unlink(missing_ok=True)
        raise DatastoreError(f"cannot write {path}: {e.strerror}; choose a place that can be written") from e


def load(path: Path) -> dict[str, Float64]:
    """What `save` wrote, by namespace. Raises DatastoreError or RevisionMismatch."""
    try:
        content = json.loads(path.read_text("utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}")
        revision = content["revision"]
        states = {} if revision != REVISION else _states(content["namespaces"])
    except OSError as e:
        raise DatastoreError(f"cannot read {path}: {e.strerror}") from e
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise DatastoreError(f"{path} is no confidence file ({e}): delete it, it is learned again") from e
    if revision != REVISION:
        raise RevisionMismatch(f"{path} has revision {revision}, this sssd reads {REVISION}: delete it to learn again")
    return states


def _states(namespaces: Mapping[str, object]) -> dict[str, Float64]:
    states: dict[str, Float64] = {}
    for name, numbers in namespaces.items():
        state = np.array(numbers, np.float64)
        trials, hits, chances = np.moveaxis(state, -1, 0)
        if state.shape != STATE_SHAPE or not np.isfinite(state).all():
            raise ValueError(f"namespace {name!r} has the shape {state.shape}, not {STATE_SHAPE}")
        if min(hits.min(), chances.min(), (trials - hits).min(), (trials * (1 + 1e-9) - chances).min()) < 0:
            raise ValueError(f"namespace {name!r} has more hits than trials")
        states[name] = state
    return states
