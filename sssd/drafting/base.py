"""The Drafter protocol: the one door through which drafts enter a step. Owns the contract only.

A drafter sees token ids and request ids. It never sees scores, slots or text, and it can be wrong, slow or
absent: the target's walk makes sure that it never changes the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sssd.types import DraftJob, DraftOptions, DraftTree, Int32, empty_tree


class Drafter(Protocol):
    """Proposes continuations of committed tokens. Called from one thread, the loop's own."""

    def begin(self, request_id: int, prompt: Int32, options: DraftOptions) -> None:
        """A request starts; `prompt` is int32 [n]. Raises RequestError if the id is in use or a namespace unknown."""

    def propose(self, jobs: Sequence[DraftJob]) -> list[DraftTree]:
        """One tree a job, in order, of at most `job.budget` nodes each; one call a step for the whole batch.

        A tree behind a job's `ahead` is a further guess: nothing is learned from it at the next accept.
        """

    def accept(self, request_id: int, tokens: Int32, tree: DraftTree) -> None:
        """`tokens` (int32 [k]) were committed after the verification of `tree` (as it was verified)."""

    def end(self, request_id: int) -> None:
        """The request is over; its state is dropped. An unknown id is an error of the caller (assert)."""

    def check(self) -> list[str]:
        """All violations of the drafter's own invariants; empty when sound. May be slow."""

    def close(self) -> None:
        """Release files and threads; safe to call twice."""


class NullDrafter:
    """Drafts nothing: plain decoding, the baseline of every speed-up."""

    def begin(self, request_id: int, prompt: Int32, options: DraftOptions) -> None:
        """Nothing to remember."""

    def propose(self, jobs: Sequence[DraftJob]) -> list[DraftTree]:
        """An empty tree for every job."""
        return [empty_tree() for _ in jobs]

    def accept(self, request_id: int, tokens: Int32, tree: DraftTree) -> None:
        """Nothing to learn."""

    def end(self, request_id: int) -> None:
        """Nothing to drop."""

    def check(self) -> list[str]:
        """Always sound."""
        return []

    def close(self) -> None:
        """Nothing to release."""
