"""Draft bundles become the levels of a cascade. Owns what must fit between them and their target.

Knows neither K's meaning nor how a level works.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sssd.config import CascadeConfig
from sssd.drafting.base import Drafter
from sssd.errors import EngineError, SpecMismatch
from sssd.spec import WEIGHTS, Bundle, open_bundle
from sssd.text import Tokenizer

if TYPE_CHECKING:
    from sssd.drafting.cascade import Cascade


def open_drafts(paths: Sequence[Path], *, target: Bundle) -> tuple[Bundle, ...]:
    """Open draft bundles, in the order given, and check each against the target.

    The vocabularies are equal but for rows of padding, a draft's slots hold as many tokens as the target's, and the
    weights fit into memory. Raises BundleError, SpecMismatch or EngineError.
    """
    bundles = tuple(open_bundle(path) for path in paths)
    expected = Tokenizer(target)
    for bundle in bundles:
        _check_vocabulary(Tokenizer(bundle), expected, bundle, target)
        if bundle.spec.max_len < target.spec.max_len:
            raise SpecMismatch(
                f"draft {bundle.path} holds {bundle.spec.max_len} tokens a request, the target {target.spec.max_len}: "
                f"export the draft with --max-len {target.spec.max_len}, or the target with {bundle.spec.max_len}"
            )
    _check_memory(bundles)
    return bundles


def make_cascade(
    bundles: Sequence[Bundle],
    below: Drafter,
    config: CascadeConfig,
    *,
    target: Bundle,
    n_slots: int,
    device: str | None,
    threads: int,
) -> Cascade:
    """Start an engine for each bundle of `open_drafts` and stack them over `below`. Raises EngineError."""
    from sssd.drafting.cascade import Cascade
    from sssd.drafting.level import Level
    from sssd.engines.choose import open_engine

    levels: list[Level] = []
    try:
        for bundle in bundles:
            engine = open_engine(bundle, n_slots=n_slots, device=device, threads=threads)
            levels.append(
                Level(
                    bundle.path.name,
                    engine,
                    vocab_size=min(bundle.spec.vocab_size, target.spec.vocab_size),
                    n_bytes=weight_bytes(bundle),
                    lenience=config.lenience,
                    children=config.children,
                )
            )
    except BaseException:
        for level in levels:
            level.close()
        raise
    return Cascade(levels, below, config)


def weight_bytes(bundle: Bundle) -> int:
    """Bytes of its weights: what a forward reads, and with it a model's size as costs go by size."""
    sizes = {entry.name: entry.size for entry in bundle.manifest.files}
    return sizes.get(WEIGHTS, sum(sizes.values()))


def _check_vocabulary(found: Tokenizer, expected: Tokenizer, bundle: Bundle, target: Bundle) -> None:
    if found.fingerprint() == expected.fingerprint():
        return
    ours, theirs = expected.tokens(), found.tokens()
    first = min((i for i in ours.keys() | theirs.keys() if ours.get(i) != theirs.get(i)), default=None)
    assert first is not None, "fingerprints differ where tokens do"
    raise SpecMismatch(
        f"draft {bundle.path} has another vocabulary than {target.path}: token {first} is {theirs.get(first)!r} and "
        f"should be {ours.get(first)!r}; a draft model needs the target's own tokenizer"
    )


def _check_memory(bundles: Sequence[Bundle]) -> None:
    needed, free = sum(map(weight_bytes, bundles)), _available_bytes()
    if free is not None and needed > free:
        raise EngineError(
            f"the draft models' weights take {needed >> 20} MiB and {free >> 20} MiB are free: use smaller ones, "
            "export them with --weights int4, or leave --draft out"
        )


def _available_bytes() -> int | None:
    """Memory that can be had without swapping; None where the system does not say."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") + _cached_bytes()
    except (ValueError, OSError):
        return None


def _cached_bytes() -> int:
    """Of it, what the system holds files in and gives back."""
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Cached:")), 0)
