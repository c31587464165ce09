"""Whether a traced bundle says what its model says. Owns which is held against which; knows no tracing.

Each check runs all scenarios of parity.py:

    small copy    the traced small copy, against the copy decoding one token at a time
    (no prefix)   the traced model, against the model's own plain forward
    as stored     where weights are stored in fewer bits: the bundle, against the traced graph over just these weights
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

from sssd.engines.ort import OrtEngine
from sssd.engines.stored import StoredWeights
from sssd.errors import ParityError
from sssd.export.graph import GraphOptions
from sssd.export.model_text import ModelText
from sssd.export.optimum.part import Asked, Part, write_part
from sssd.export.parity import N_SLOTS, Observation, judge, observe
from sssd.export.source import Blocks, WeightSource
from sssd.spec import WEIGHTS, Bundle, ParityCheck
from sssd.types import Float32

Progress = Callable[[str, int, int], None]  # (stage, done so far, in all)

_SMALL_COPY, _AS_STORED = "small copy: ", "as stored: "  # before the checks' names
_PLAIN = Asked("plain", "fp32", GraphOptions(max_len=1), ModelText("", None, None, ()))


def check_traced(probe: Part, part: Part, bundle: Bundle, scratch: Path, progress: Progress) -> tuple[ParityCheck, ...]:
    """Run them all; plain copies of the weights are written below `scratch`. Raises ParityError."""
    progress("parity", 0, 3)
    small = _judged(_SMALL_COPY, _plain_bundle(probe, probe.weights, scratch), probe.answers)
    progress("parity", 1, 3)
    is_plain = bundle.spec.weights == "fp32"
    whole = _judged("", bundle if is_plain else _plain_bundle(part, part.weights, scratch), part.answers)
    progress("parity", 2, 3)
    stored = () if is_plain else _judged(_AS_STORED, bundle, _answers(_plain_twin(part, bundle, scratch)))
    progress("parity", 3, 3)
    return small + whole + stored


def _plain_bundle(part: Part, source: WeightSource, scratch: Path) -> Bundle:
    """The traced graph over float32 weights."""
    directory = Path(mkdtemp(prefix="plain.", dir=scratch))
    return Bundle(directory, write_part(directory, part, _PLAIN, source))


def _plain_twin(part: Part, bundle: Bundle, scratch: Path) -> Bundle:
    """The traced graph over the weights that a bundle's codes stand for."""
    rows = [name for name in part.matrices.uses if part.matrices.by_rows(name)]
    return _plain_bundle(part, _ReadBack(StoredWeights(bundle.file(WEIGHTS), by_rows=rows)), scratch)


class _ReadBack:
    """The WeightSource of a weights file that holds a traced model."""

    def __init__(self, weights: StoredWeights) -> None:
        self._weights = weights

    def load(self, name: str) -> Float32:
        """A matrix, dequantized."""
        return self._weights.load(name)

    def blocks(self, name: str) -> Blocks | None:
        """None: there are none left."""
        return None


def _judged(prefix: str, bundle: Bundle, expected: Mapping[tuple[int, ...], Float32]) -> tuple[ParityCheck, ...]:
    try:
        checks = judge(_observed(bundle), expected)
    except ParityError as error:
        raise ParityError(f"{prefix}{error}") from error
    return tuple(replace(check, name=prefix + check.name) for check in checks)


def _observed(bundle: Bundle) -> list[Observation]:
    engine = OrtEngine(bundle, n_slots=N_SLOTS, exact=True)
    observations = observe(engine)
    engine.close()
    return observations


def _answers(bundle: Bundle) -> dict[tuple[int, ...], Float32]:
    """What a plain bundle says after each sequence."""
    found = {o.sequence: o.scores.scores for o in _observed(bundle)}
    return {sequence: scores for sequence, scores in found.items() if scores is not None}
