"""The plain twin of the default rules: trees out of lists, by the definitions. Owns no index and no order of its own.

What is looked for, in which order ties are broken and how chances are mixed is told in csrc/mixture.h.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sssd.drafting.reference_confidence import Learned
from sssd.drafting.rules import CONTEXT_ORDERS, FIRST_ASKED, STORED_ORDERS, MixtureRules
from sssd.drafting.segments import Segment
from sssd.types import Source

_NEGLIGIBLE = 1 / 1024
_MOST_HALVINGS = 40


class Node(NamedTuple):
    """A draft node; parents come first."""

    token: int
    parent: int
    source: int
    chance: float  # given that the parent is accepted, as the rule says it
    path: float  # that the whole path is accepted, corrected


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one draft may draw from."""

    context: list[int]
    prompt_size: int
    cursor: int  # position in the context behind what was copied last
    prediction: list[int]
    on_prediction: bool
    segments: Sequence[Segment]


class Occurrence(NamedTuple):
    """A place where the suffix occurred: `text[at]` followed it."""

    text: Sequence[int]
    at: int
    left: int
    match: int
    source: int

    def token(self) -> int | None:
        """The next token, or None where the text ends."""
        return int(self.text[self.at]) if self.left > 0 and self.text[self.at] >= 0 else None

    def advanced(self) -> Occurrence:
        """The same place one token on."""
        return self._replace(at=self.at + 1, left=self.left - 1)


def split(occurrences: list[Occurrence]) -> dict[int, list[Occurrence]]:
    """By the token that follows, in the order tokens first appear."""
    branches: dict[int, list[Occurrence]] = {}
    for occurrence in occurrences:
        token = occurrence.token()
        if token is not None:
            branches.setdefault(token, []).append(occurrence.advanced())
    return branches


def agreeing(a: Sequence[int], a_end: int, b: Sequence[int], b_end: int, cap: int) -> int:
    """Tokens before `a_end` and `b_end` that agree, at most `cap`, up to a separator."""
    n = 0
    while n < min(cap, a_end, b_end) and a[a_end - 1 - n] == b[b_end - 1 - n] >= 0:
        n += 1
    return n


def run_length(text: Sequence[int], cap: int) -> int:
    """Tokens at the end of a text up to the last separator, at most `cap`."""
    return agreeing(text, len(text), text, len(text), cap)


# ---- stored texts -----------------------------------------------------------------------------


class Stored:
    """The occurrences of the context's last n tokens in every segment, in the suffix arrays' order."""

    def __init__(self, evidence: Evidence) -> None:
        self._context = evidence.context
        self.segments = [(s, s.tokens.tolist(), s.suffixes.tolist()) for s in evidence.segments]

    def interval(self, k: int, n: int) -> list[int]:
        """Positions in segment k that begin with the last n tokens."""
        _, tokens, suffixes = self.segments[k]
        query = self._context[-n:]
        return [p for p in suffixes if tokens[p : p + n] == query]

    def occurrence(self, k: int, position: int, n: int, cap: int) -> Occurrence | None:
        """What follows the n matched tokens at `position`, unless it is erased."""
        segment, tokens, _ = self.segments[k]
        if any(start <= position < stop for start, stop in segment.dead.tolist()):
            return None
        match = n + agreeing(self._context, len(self._context) - n, tokens, position, cap - n)
        return Occurrence(tokens, position + n, len(tokens) - position - n, match, int(segment.source))


# ---- the default rules ------------------------------------------------------------------------


def _find(text: list[int], suffix: list[int], rules: MixtureRules, source: Source) -> list[Occurrence]:
    run = run_length(suffix, CONTEXT_ORDERS[0])
    found: list[Occurrence] = []
    longer = 1 << 30
    for order in CONTEXT_ORDERS:
        if run < order:
            continue
        ends = [p for p in range(len(text), order - 1, -1) if text[p - order : p] == suffix[-order:]]
        for p in ends[: rules.context_most]:
            if len(found) >= rules.context_most:
                break
            match = agreeing(suffix, len(suffix), text, p, min(rules.max_match, longer))
            if p < len(text) and order <= match < longer:
                found.append(Occurrence(text, p, len(text) - p, match, source))
        if len(found) >= rules.enough or _longest(found) >= rules.sure:
            break
        longer = order
    return found


def _longest(occurrences: list[Occurrence]) -> int:
    return max((o.match for o in occurrences), default=0)


def _find_stored(evidence: Evidence, rules: MixtureRules) -> list[Occurrence]:
    stored = Stored(evidence)
    longest = run_length(evidence.context, STORED_ORDERS[0])

    def everything(n: int) -> list[tuple[int, int]]:
        return [(k, p) for k in range(len(stored.segments)) for p in stored.interval(k, n)]

    first = FIRST_ASKED
    while first > 0 and STORED_ORDERS[first - 1] <= longest:
        if len(everything(STORED_ORDERS[first])) <= rules.store_most:
            break
        first -= 1
    found: list[Occurrence] = []
    cap = rules.max_match
    for n in STORED_ORDERS[first:]:
        places = everything(n) if n <= longest else []
        if not places:
            continue
        if len(found) >= rules.enough:
            break
        wanted = min(len(places), rules.store_most)
        for i in range(wanted):
            occurrence = stored.occurrence(*places[i * len(places) // wanted], n, cap)
            if occurrence is not None and (occurrence.match < cap or cap == rules.max_match):
                found.append(occurrence)
        cap = n
    return found


def _gather(rules: MixtureRules, evidence: Evidence) -> list[Occurrence]:
    guess = evidence.prediction
    found = _find(guess, evidence.context, rules, Source.PREDICTION) if guess else []
    if evidence.on_prediction:
        at = len(evidence.context) - evidence.prompt_size
        match = min(rules.max_match, at + rules.head_start)
        found = [o for o in found if o.at != at]
        found.append(Occurrence(guess, at, len(guess) - at, match, Source.PREDICTION))
    own = _find(evidence.context, evidence.context, rules, Source.CONTEXT)
    return found + own + (_find_stored(evidence, rules) if _longest(own) < rules.sure else [])


def _is_stored(occurrence: Occurrence) -> bool:
    return occurrence.source in (Source.DATASTORE, Source.LIVE)


def _weights(rules: MixtureRules, alive: list[Occurrence], depth: int) -> dict[tuple[bool, int], float]:
    """Of an occurrence, by whether it is stored text and its match length."""
    longest = _longest(alive)
    share = {(stored, m): 0.0 for stored in (False, True) for m in range(longest + 1)}
    left = 1.0
    for m in range(longest, 0, -1):
        for stored in (False, True):
            voters = sum(_is_stored(o) == stored and o.match >= m for o in alive)
            if voters == 0 or left < _NEGLIGIBLE:
                continue
            doubt = rules.store_doubt if stored else rules.context_doubt
            length = min(m + depth, rules.sure_from + _MOST_HALVINGS)
            beta = math.ldexp(doubt, -max(0, length - rules.sure_from))
            share[stored, m] = left / (voters + beta)
            left = share[stored, m] * beta
    for stored in (False, True):
        for m in range(1, longest + 1):
            share[stored, m] += share[stored, m - 1]
    return share


class _Candidate(NamedTuple):
    node: Node
    occurrences: list[Occurrence]
    depth: int
    order: int  # of creation


class Guides(NamedTuple):
    """What followed three of the longest matches in the request's own text."""

    newest: int
    oldest: int
    onward: int
    onward_at: int | None  # its place in the context; None when only the prediction matched


def guides(rules: MixtureRules, evidence: Evidence) -> Guides | None:
    """Those of the root, if anything of the request's own matched."""
    return _guides(_gather(rules, evidence), evidence.cursor)


def _guides(occurrences: list[Occurrence], cursor: int) -> Guides | None:
    own = [o for o in occurrences if o.token() is not None and not _is_stored(o)]
    if not own:
        return None
    longest = [o for o in own if o.match == max(x.match for x in own)]
    newest, oldest = longest[0].token(), longest[-1].token()
    context = [o for o in longest if o.source == Source.CONTEXT]
    behind = [o for o in context if o.at >= cursor]
    onward = min(behind, key=lambda o: o.at) if behind else max(context, key=lambda o: o.at, default=None)
    assert newest is not None
    assert oldest is not None
    if onward is None:
        return Guides(newest, oldest, newest, None)
    return Guides(newest, oldest, int(onward.text[onward.at]), onward.at)


def draft_mixture(rules: MixtureRules, evidence: Evidence, learned: Learned | None, budget: int) -> list[Node]:
    """The best `budget` nodes by the default rules, parents first."""
    parts = [1.0, 0.0, 0.0] if learned is None else learned.leaning.parts()
    candidates: list[_Candidate] = []
    n_made = 0

    def expand(occurrences: list[Occurrence], parent: int, path: float, depth: int) -> None:
        nonlocal n_made
        alive = [o for o in occurrences if o.token() is not None]
        weights = _weights(rules, alive, depth)
        guided = _guides(alive, evidence.cursor + depth)
        for token, branch in split(occurrences).items():
            votes = [weights[_is_stored(o), o.match] for o in branch]
            chance = 0.0
            for vote in votes:
                chance += vote
            source = branch[votes.index(max(votes))].source
            if guided is not None:
                backed = 0.0
                for part, guide in zip(parts, guided[:3], strict=True):
                    backed += part if token == guide else 0
                chance = (1 - rules.longest_share) * chance + rules.longest_share * backed
            chance = min(chance, 1.0)
            believed = chance if learned is None else learned.curves[source].corrected(chance)
            node = Node(token, parent, source, chance, path * believed)
            candidates.append(_Candidate(node, branch, depth + 1, n_made))
            n_made += 1

    nodes: list[Node] = []
    expand(_gather(rules, evidence), -1, 1.0, 0)
    while candidates and len(nodes) < budget:
        best = min(candidates, key=lambda c: (-c.node.path, -c.depth, c.order))
        candidates.remove(best)
        nodes.append(best.node)
        expand(best.occurrences, len(nodes) - 1, best.node.path, best.depth)
    return nodes
