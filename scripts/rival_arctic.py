"""Print tokens per step and propose times of Arctic's suffix decoding beside ours, on the same token sets, in one run.

python scripts/rival_arctic.py shared/data/replay/*.npz

Needs `pip install --no-deps arctic-inference==0.3.0`. Both draft trees of at most the same number of nodes from the
prompt, the output and the set's documents; they take turns, so that both meet the same machine. Arctic may draft as
many tokens as the budget has after a match of any length; its propose time includes turning its lists into arrays.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sssd.bench.replay import ReplayRecord, ReplaySet, load_set, replay
from sssd.bench.replay_files import open_documents, replay_files
from sssd.drafting.base import NullDrafter
from sssd.types import DraftJob, DraftOptions, DraftTree, Int32, Source

if TYPE_CHECKING:
    from collections.abc import Sequence

BUDGETS = (3, 7, 15, 31)
DEPTH = 64  # of its trees
CACHED = 10_000  # finished requests it keeps


class Arctic(NullDrafter):
    """Arctic's SuffixDecodingCache behind our protocol; the documents are requests that have finished."""

    def __init__(self, cache_type: Any, documents: Sequence[Int32]) -> None:
        """`cache_type` is arctic_inference's SuffixDecodingCache."""
        self._cache = cache_type(max_tree_depth=DEPTH, max_cached_requests=CACHED)
        self._text: list[int] = []
        for i, document in enumerate(documents):
            self._cache.start_request(f"document {i}", np.zeros(1, np.int32))
            self._cache.add_active_response(f"document {i}", document.tolist())
            self._cache.stop_request(f"document {i}")

    def begin(self, request_id: int, prompt: Int32, options: DraftOptions) -> None:
        """Build the request's own tree."""
        self._cache.start_request(request_id, prompt)
        self._text = prompt.tolist()

    def propose(self, jobs: Sequence[DraftJob]) -> list[DraftTree]:
        """One call a job: it has none for a batch."""
        return [self._tree(job) for job in jobs]

    def _tree(self, job: DraftJob) -> DraftTree:
        draft = self._cache.speculate(
            job.request_id,
            np.array(self._text[-DEPTH:], np.int32),
            max_spec_tokens=job.budget,
            max_spec_factor=float(job.budget),
            min_token_prob=0.0,
            use_tree_spec=True,
        )
        n = len(draft.token_ids)
        return DraftTree(
            np.array(draft.token_ids, np.int32),
            np.array(draft.parents, np.int32),
            np.array(draft.probs, np.float32),
            np.full(n, Source.CONTEXT, np.uint8),
        )

    def accept(self, request_id: int, tokens: Int32, tree: DraftTree) -> None:
        """Both of its trees grow."""
        self._cache.add_active_response(request_id, tokens.tolist())
        self._text += tokens.tolist()

    def end(self, request_id: int) -> None:
        """Drop the answer too: what is replayed later must not know it."""
        self._cache.stop_request(request_id)
        self._cache.evict_cached_response(request_id)


def line(name: str, record: ReplayRecord) -> str:
    """One table row."""
    return (
        f"| {record.set} | {record.budget} | {name} | {record.tokens_per_step:.3f} | "
        f"{record.propose_us_p50:.1f} / {record.propose_us_p99:.1f} | {record.accept_us_p50:.1f} |"
    )


def rival(cache_type: Any, replayed: ReplaySet, budget: int) -> ReplayRecord:
    """Replay a set with Arctic."""
    return replay(Arctic(cache_type, replayed.documents), replayed, budget=budget, name="arctic")


def main(files: list[Path]) -> None:
    """Replay and print."""
    try:
        from arctic_inference.suffix_decoding import SuffixDecodingCache
    except ImportError:
        sys.exit("arctic-inference is not installed: pip install --no-deps arctic-inference==0.3.0")
    for path in files:
        replayed, store = load_set(path), open_documents(path)
        for budget in BUDGETS:
            print(line("Arctic, tree", rival(SuffixDecodingCache, replayed, budget)), flush=True)
            print(line("retrieval", replay_files([path], budgets=[budget], store=store)[0]), flush=True)


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
