"""The constants of the two rule sets. Owns their values, their bounds and where they come from.

Knows no tree and no text; the native core and its plain twin both read these.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from sssd.errors import SssdError

STORED_ORDERS = (16, 8, 4, 3, 2, 1)  # match lengths asked of stored texts
FIRST_ASKED = 2  # index of the length asked first; longer ones follow while it has more than `store_most`
CONTEXT_ORDERS = (8, 4, 2, 1)  # n-grams the context index chains


@dataclass(frozen=True, slots=True)
class MixtureRules:
    """The default: a back-off mixture over match lengths and sources.

    Tuned by replay on specbench, eagle_tasks, chat, toolcall, code rewrites and agent trajectories, never on the three
    replay sets; docs/drafters/retrieval.md shows both.
    """

    max_match: int = 64  # longer matches count as this long
    context_most: int = 100  # context occurrences looked at
    store_most: int = 32  # stored occurrences sampled for one match length
    enough: int = 16  # shorter matches are not asked once so many occurrences were found
    sure: int = 20  # once the context matches so much, nothing shorter or stored is asked: it would weigh nothing
    head_start: int = 4  # match length that an output not yet begun has with its prediction
    context_doubt: float = 4.0  # weight of the shorter matches' opinion, in context occurrences
    store_doubt: float = 8.0  # the same for stored occurrences
    sure_from: int = 12  # beyond this match length both halve with every token
    longest_share: float = 0.2  # mass given to three of the longest context matches: newest, oldest, onward

    def __post_init__(self) -> None:
        for name, ok, allowed in (
            ("max_match", STORED_ORDERS[0] < self.max_match <= 256, f"{STORED_ORDERS[0] + 1} to 256"),
            ("context_most", 1 <= self.context_most <= 4096, "1 to 4096"),
            ("store_most", 1 <= self.store_most <= 4096, "1 to 4096"),
            ("enough", self.enough >= 1, "1 or more"),
            ("sure", self.sure >= CONTEXT_ORDERS[0], f"{CONTEXT_ORDERS[0]} or more"),
            ("head_start", 1 <= self.head_start <= self.max_match, "1 to max_match"),
            ("context_doubt", self.context_doubt > 0, "above 0"),
            ("store_doubt", self.store_doubt > 0, "above 0"),
            ("sure_from", self.sure_from >= 1, "1 or more"),
            ("longest_share", 0 <= self.longest_share < 1, "0 to below 1"),
        ):
            _hold(self, name, ok, allowed)


@dataclass(frozen=True, slots=True)
class AuthorsRules:
    """The rules of the authors' published library (SSSD, arXiv 2411.05894) with the constants of its experiments."""

    prefix: int = 4  # longest match looked for
    window: int = 8  # tokens of an inserted window: match and continuation together
    bridge: int = 3  # prompt tokens that stand before the output in its own windows
    context_weight: float = 0.6  # of the first token after a context match
    store_most: int = 100  # stored occurrences sampled at one match length
    store_least: int = 20  # and at least so many of a segment as large as the first
    enough: int = 50  # shorter stored matches are not added once so many were sampled
    branch: int = 0  # tokens of a stored continuation; 0 = by budget
    most_children: int = 5  # of one node

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            _hold(self, field.name, value >= 0 if field.name in ("bridge", "branch") else value > 0, "positive")
        _hold(self, "window", self.window > self.prefix, "above prefix")


def _hold(rules: MixtureRules | AuthorsRules, name: str, ok: bool, allowed: str) -> None:
    if not ok:
        raise SssdError(f"{name} is {getattr(rules, name)!r}: allowed is {allowed}")
