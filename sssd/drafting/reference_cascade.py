"""The cascade's recursion in its plain form: one row, a chain, greedy levels. Slow on purpose.

Owns what `cascade` must agree with: the same tokens and the same reviews of every level. Knows no engine, no cache, no
tree and no batch: a level is a function from a text to probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sssd.config import CascadeConfig

Model = Callable[[Sequence[int]], Sequence[float]]  # a text -> a probability for every token
Copier = Callable[[Sequence[int], int], Sequence[int]]  # a text and how many tokens are wanted -> at most so many


@dataclass(slots=True)
class PlainCascade:
    """`models`, largest first, over `copy`; `reviews[i]` counts those of model i."""

    models: Sequence[Model]
    copy: Copier
    config: CascadeConfig
    reviews: list[int] = field(init=False)  # set at construction

    def __post_init__(self) -> None:
        self.reviews = [0] * len(self.models)

    def draft(self, text: Sequence[int], room: int, first: int = 0) -> list[int]:
        """What the members from `first` on guess behind `text`, at most `room` tokens."""
        guesses: list[int] = []
        upto = 0
        for member, positions in enumerate(self.config.k[first], first):
            upto += positions
            while len(guesses) < min(upto, room):
                known = [*text, *guesses]
                left = room - len(guesses)
                if member == len(self.models):
                    more = list(self.copy(known, min(positions, left)))
                else:
                    more = self.review(known, self.draft(known, left - 1, member + 1), member)
                if not more:
                    break
                guesses += more
        return guesses

    def review(self, text: Sequence[int], draft: Sequence[int], member: int) -> list[int]:
        """The part of `draft` that a model lets pass, and its own next token."""
        self.reviews[member] += 1
        passed: list[int] = []
        for token in draft:
            chances = self.models[member]([*text, *passed])
            own = max(range(len(chances)), key=chances.__getitem__)
            lenient = self.config.lenience > 1 and chances[token] > 1 / self.config.lenience
            if token != own and not lenient:
                return [*passed, own]
            passed.append(token)
        chances = self.models[member]([*text, *passed])
        return [*passed, max(range(len(chances)), key=chances.__getitem__)]
