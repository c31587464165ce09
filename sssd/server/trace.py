"""Drafts made visible: which tokens of a stream's event were guessed before, from where, and what was guessed wrongly.

Owns the extension `speculative` of an event, given when a request asks `speculative: {"trace": true}`. Knows no loop.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from sssd.answer import Piece
from sssd.text import Tokenizer
from sssd.types import Source, Tried


class TracedToken(msgspec.Struct):
    """A token of the answer; the texts of an event's tokens joined are the event's text."""

    text: str
    source: str | None  # where its draft came from; None = the model's own choice, undrafted


class RejectedToken(msgspec.Struct):
    """A draft that the model did not follow."""

    text: str
    source: str
    depth: int  # 1 = in the place of the step's first token


class Trace(msgspec.Struct):
    """One step of one answer."""

    tokens: list[TracedToken]
    rejected: list[RejectedToken]


def trace_of(piece: Piece, tokenizer: Tokenizer) -> Trace:
    """What the step of `piece` drafted. Cost: a few microseconds a draft node."""
    tried = piece.tried
    path = () if tried is None else tried.path
    bounds = [*piece.offsets, (piece.offsets[0] if piece.offsets else 0) + len(piece.text)]
    tokens = [
        TracedToken(
            piece.text[begin - bounds[0] : end - bounds[0]],
            None if tried is None or i >= len(path) else _name(tried, path[i]),
        )
        for i, (begin, end) in enumerate(pairwise(bounds))
    ]
    if piece.text and not tokens:  # text that was held back until the end
        tokens = [TracedToken(piece.text, None)]
    return Trace(tokens, [] if tried is None else _rejected(tried, tokenizer))


def _rejected(tried: Tried, tokenizer: Tokenizer) -> list[RejectedToken]:
    accepted = set(tried.path)
    depths: list[int] = []
    found = []
    for node, parent in enumerate(tried.tree.parents.tolist()):
        depths.append(1 if parent < 0 else depths[parent] + 1)
        if node not in accepted:
            text = tokenizer.token_text(int(tried.tree.tokens[node]))
            found.append(RejectedToken(text, _name(tried, node), depths[node]))
    return found


def _name(tried: Tried, node: int) -> str:
    return Source(int(tried.tree.source[node])).name.lower()
