"""Real drafts hidden among wrong ones, so that trees branch and kept paths are no prefix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sssd.drafting.simple import MaxGram
from sssd.types import DraftJob, DraftOptions, DraftTree, Int32


class NoisyMaxGram:
    """Max-Gram's chain with a random sibling in front of every node. A Drafter."""

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        self._inner = MaxGram()
        self._rng = np.random.default_rng(seed)
        self._vocab_size = vocab_size

    def begin(self, request_id: int, prompt: Int32, options: DraftOptions) -> None:
        self._inner.begin(request_id, prompt, options)

    def propose(self, jobs: Sequence[DraftJob]) -> list[DraftTree]:
        halves = [DraftJob(job.request_id, job.budget // 2) for job in jobs]
        return [self._with_noise(tree) for tree in self._inner.propose(halves)]

    def _with_noise(self, chain: DraftTree) -> DraftTree:
        n = len(chain)
        tokens, parents = np.zeros(2 * n, np.int32), np.zeros(2 * n, np.int32)
        tokens[1::2] = chain.tokens
        tokens[::2] = (chain.tokens + self._rng.integers(1, self._vocab_size, n)) % self._vocab_size
        parents[::2] = parents[1::2] = 2 * np.arange(n) - 1
        return DraftTree(tokens, parents, np.repeat(chain.scores, 2), np.repeat(chain.source, 2))

    def accept(self, request_id: int, tokens: Int32, tree: DraftTree) -> None:
        chain = DraftTree(tree.tokens[1::2], (tree.parents[1::2] - 1) // 2, tree.scores[1::2], tree.source[1::2])
        self._inner.accept(request_id, tokens, chain)

    def end(self, request_id: int) -> None:
        self._inner.end(request_id)

    def check(self) -> list[str]:
        return self._inner.check()

    def close(self) -> None:
        self._inner.close()
