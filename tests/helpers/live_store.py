"""Opening live datastores in tests: a small vocabulary, small segments, a clock that stands still until told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from sssd.drafting.store_live import LiveDatastore
from sssd.drafting.store_plan import LiveOptions
from sssd.types import Int32

VOCAB = 6
SMALL = LiveOptions(head_tokens=1024, segment_tokens=16_384, max_tokens=1 << 20, interval_seconds=0.01, fanout=2)


class Clock:
    """Unix time that stands still until told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def opened(path: Path, options: LiveOptions = SMALL, clock: Clock | None = None) -> Iterator[LiveDatastore]:
    """A live datastore that is sound when it is closed."""
    with LiveDatastore(path, tokenizer="vocab", vocab_size=VOCAB, options=options, clock=clock or Clock()) as live:
        yield live
        assert live.check() == []


def ids(tokens: list[int]) -> Int32:
    return np.array(tokens, np.int32)


def remember_all(live: LiveDatastore, documents: list[list[int]], first_id: int = 0, namespace: str = "a") -> None:
    for number, tokens in enumerate(documents, first_id):
        live.remember(number, namespace, ids(tokens))
