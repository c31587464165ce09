"""A file's entries as arrays and as segments, each made once. Owns the identity of published segments.

Knows nothing of when entries change; it forgets what it is told to.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, NamedTuple

from sssd.drafting.segments import Segment
from sssd.drafting.store_file import Payload, dead_positions, map_payload
from sssd.drafting.store_format import Entry
from sssd.types import Source


class _Shown(NamedTuple):
    entry: Entry
    segment: Segment


class Mappings:
    """The payloads and segments of one open file, by the entries' offsets."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._payloads: dict[int, Payload] = {}
        self._shown: dict[int, _Shown] = {}

    def payload(self, entry: Entry) -> Payload:
        """The entry's arrays."""
        if entry.offset not in self._payloads:
            self._payloads[entry.offset] = map_payload(self._file, entry)
        return self._payloads[entry.offset]

    def segment(self, entry: Entry) -> Segment:
        """An indexed entry as a live segment: the same object as long as the entry is the same."""
        known = self._shown.get(entry.offset)
        if known is None or known.entry is not entry:
            payload = self.payload(entry)
            dead = dead_positions(payload, entry.dead, self._path)
            known = _Shown(entry, Segment(payload.tokens, payload.suffixes, dead, Source.LIVE))
            self._shown[entry.offset] = known
        return known.segment

    def keep(self, entries: Iterable[Entry]) -> None:
        """Forget all others; arrays that somebody holds live on."""
        kept = {entry.offset for entry in entries}
        self._payloads = {offset: payload for offset, payload in self._payloads.items() if offset in kept}
        self._shown = {offset: shown for offset, shown in self._shown.items() if offset in kept}
