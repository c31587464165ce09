"""When segments are merged, when documents go and when the file is rewritten. Owns these rules, as pure functions.

Knows no file: it looks at entries and counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sssd.drafting.store_format import PAGE, Entry, aligned
from sssd.errors import DatastoreError

_SMALLEST_TIER = 4096  # tokens; segments below share a tier


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """How a live datastore keeps house; the command line's defaults are these."""

    max_tokens: int = 64 << 20  # remembered at most, over all namespaces; the oldest documents go first
    ttl_seconds: float | None = None  # documents older than this go; None = they stay
    interval_seconds: float = 0.25  # between two looks at what was finished
    head_tokens: int = 64 << 10  # a namespace's newest text, sorted anew at each look; above this it becomes a segment
    segment_tokens: int = 16 << 20  # merging stops here; bounds the scratch memory of a merge (15 bytes a token)
    fanout: int = 4  # segments of about one size that are merged into one
    garbage_bytes: int = 16 << 20  # of the file that nothing uses any more, tolerated however small the rest

    def __post_init__(self) -> None:
        """Raises DatastoreError for values that cannot work together."""
        if not 1024 <= self.head_tokens <= self.segment_tokens <= 512 << 20:
            raise DatastoreError("live datastore: 1024 <= head_tokens <= segment_tokens <= 512 Mi must hold")
        if self.max_tokens < 4 * self.head_tokens:
            raise DatastoreError(f"live datastore: max_tokens is {self.max_tokens}: give at least 4 head_tokens")
        if not 0 < self.interval_seconds <= 1 or self.fanout < 2 or self.garbage_bytes < 0:
            raise DatastoreError(
                "live datastore: interval_seconds is in (0, 1], fanout at least 2, garbage_bytes at least 0"
            )
        if self.ttl_seconds is not None and self.ttl_seconds <= 0:
            raise DatastoreError(f"live datastore: ttl_seconds is {self.ttl_seconds}: give more than 0, or none")


def merge_plan(entries: Sequence[Entry], options: LiveOptions) -> tuple[Entry, ...]:
    """Which of one namespace's indexed entries to merge next; none when all is well.

    1. An entry of which a quarter or more is dead, alone, when it fits a segment: merging it drops the dead.
    2. The oldest `fanout` entries of the smallest tier that has so many, when they fit one segment together. Tiers
       grow by the fan-out, so that a token is sorted again once a tier: log(segment / head) times in its life.
    """
    for entry in entries:
        if 4 * entry.dead_tokens >= entry.n_tokens and 0 < entry.live_tokens <= options.segment_tokens:
            return (entry,)
    tiers: dict[int, list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: entry.oldest_ms):
        tiers.setdefault(_tier(entry.live_tokens, options.fanout), []).append(entry)
    for _, members in sorted(tiers.items()):
        chosen = tuple(members[: options.fanout])
        if len(chosen) == options.fanout and sum(e.live_tokens for e in chosen) <= options.segment_tokens:
            return chosen
    return ()


def rewrite_due(entries: Sequence[Entry], file_bytes: int, options: LiveOptions) -> bool:
    """Whether more of the file is garbage than not, and more than is tolerated."""
    used = sum(aligned(entry.n_bytes, PAGE) for entry in entries)
    return file_bytes - used > max(options.garbage_bytes, used)


def expiry(oldest_ms: int | None, now_ms: int, options: LiveOptions) -> int | None:
    """The time before which documents go now; None when none is due.

    Once one has reached its age, those in the last twentieth before it go along: nothing is found after its time,
    and a busy store does not commit for every single document.
    """
    if options.ttl_seconds is None or oldest_ms is None:
        return None
    age = int(1000 * options.ttl_seconds)
    return now_ms - age * 19 // 20 if oldest_ms <= now_ms - age else None


def excess_tokens(live_tokens: int, options: LiveOptions) -> int:
    """Tokens to drop: none within the bound, else a twentieth more than needed, so as not to drop at each look."""
    return live_tokens - options.max_tokens * 19 // 20 if live_tokens > options.max_tokens else 0


def _tier(n_tokens: int, fanout: int) -> int:
    tier, bound = 0, _SMALLEST_TIER
    while n_tokens >= bound:
        tier, bound = tier + 1, bound * fanout
    return tier
