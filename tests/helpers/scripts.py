"""Scripted targets and drafters: no model, every failure visible in the output."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from sssd.config import SamplingParams
from sssd.drafting.base import NullDrafter
from sssd.runtime.loop import Loop
from sssd.runtime.request import Request, make_request
from sssd.runtime.scheduler import Scheduler
from sssd.tree import chain_tree
from sssd.types import DraftJob, DraftOptions, DraftTree, Int32, Source, StepOutput

VOCAB = 23


def random_script(vocab: int = VOCAB, order: int = 6) -> Callable[[Int32], np.ndarray]:
    """Scores that are a hash of the last `order` tokens and the length: any slip of context shows."""

    def script(context: Int32) -> np.ndarray:
        data = context[-order:].astype(np.int32).tobytes() + len(context).to_bytes(4, "little")
        seed = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
        return (np.random.default_rng(seed).normal(size=vocab) * 2).astype(np.float32)

    return script


def fixed_answer(answer: Sequence[int], prompt_len: int, vocab: int = VOCAB) -> Callable[[Int32], np.ndarray]:
    """A target that says `answer` after a prompt of `prompt_len` tokens, whatever the draft; then token 0."""

    def script(context: Int32) -> np.ndarray:
        at = len(context) - prompt_len
        scores = np.zeros(vocab, np.float32)
        scores[answer[at] if 0 <= at < len(answer) else 0] = 5.0
        return scores

    return script


class HistoryDrafter(NullDrafter):
    """Keeps every live request's tokens, and what it was told."""

    def __init__(self) -> None:
        self.history: dict[int, list[int]] = {}

    def begin(self, request_id: int, prompt: Int32, options: DraftOptions) -> None:
        assert request_id not in self.history
        self.history[request_id] = prompt.tolist()

    def accept(self, request_id: int, tokens: Int32, tree: DraftTree) -> None:
        self.history[request_id] += tokens.tolist()

    def end(self, request_id: int) -> None:
        del self.history[request_id]


class GarbageTrees(HistoryDrafter):
    """Random trees, partly copied from the history: mostly wrong on purpose, never the same twice."""

    def __init__(self, seed: int, vocab: int = VOCAB) -> None:
        super().__init__()
        self.rng = np.random.default_rng(seed)
        self.vocab = vocab

    def propose(self, jobs: Sequence[DraftJob]) -> list[DraftTree]:
        return [self._tree(self.history[job.request_id], job.budget) for job in jobs]

    def _tree(self, history: list[int], budget: int) -> DraftTree:
        tokens: list[int] = []
        parents: list[int] = []
        for _ in range(int(self.rng.integers(0, budget + 1))):
            parent = int(self.rng.integers(-1, len(tokens)))
            token = int(self.rng.integers(self.vocab)) if self.rng.random() < 0.5 else history[-1]
            if (parent, token) not in zip(parents, tokens, strict=True):
                tokens.append(token)
                parents.append(parent)
        scores = np.ones(len(tokens), np.float32)
        for i, p in enumerate(parents):
            scores[i] = (1.0 if p < 0 else scores[p]) * 0.5
        source = np.full(len(tokens), Source.CONTEXT, np.uint8)
        return DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32), scores, source)


class Oracle(HistoryDrafter):
    """Knows every request's full text; hides the path behind wrong siblings when asked to."""

    def __init__(self, full: dict[int, list[int]], *, decoys: bool = False, vocab: int = VOCAB) -> None:
        super().__init__()
        self.full = full
        self.decoys = decoys
        self.vocab = vocab

    def propose(self, jobs: Sequence[DraftJob]) -> list[DraftTree]:
        return [self._tree(job) for job in jobs]

    def _tree(self, job: DraftJob) -> DraftTree:
        known = len(self.history[job.request_id])
        n = job.budget // 2 if self.decoys else job.budget
        path = self.full[job.request_id][known : known + n]
        if not self.decoys:
            ones = np.ones(len(path), np.float32)
            return chain_tree(np.array(path, np.int32), ones, np.full(len(path), Source.CONTEXT, np.uint8))
        tokens, parents, parent = [], [], -1
        for token in path:
            tokens += [(token + 1) % self.vocab, token]
            parents += [parent, parent]
            parent = len(tokens) - 1
        size = len(tokens)
        return DraftTree(
            np.array(tokens, np.int32), np.array(parents, np.int32), np.ones(size, np.float32), np.zeros(size, np.uint8)
        )


def request(
    request_id: int, prompt: Sequence[int], params: SamplingParams, *, max_draft: int = 7, **spec: object
) -> Request:
    limits: dict = {"max_len": 256, "vocab_size": VOCAB, "eos_ids": ()} | spec  # and priority, deadline
    return make_request(request_id, prompt, params, options=DraftOptions(), max_draft_tokens=max_draft, **limits)


def run(loop: Loop, requests: Sequence[Request]) -> dict[int, list[StepOutput]]:
    """Run requests to their end, checking the scheduler after every step."""
    outputs: dict[int, list[StepOutput]] = {r.id: [] for r in requests}
    for r in requests:
        loop.add(r)
    while len(loop.scheduler):
        for out in loop.step():
            outputs[out.request_id].append(out)
        assert loop.scheduler.check() == []
    return outputs


def tokens_of(outputs: dict[int, list[StepOutput]]) -> dict[int, list[int]]:
    return {i: [t for out in outs for t in out.tokens] for i, outs in outputs.items()}


def make_loop(
    engine,
    drafter,
    *,
    n_slots: int = 4,
    chunk: int = 64,
    min_width: int = 1,
    branch_noise: float | None = 0.0,
) -> Loop:
    return Loop(engine, drafter, Scheduler(n_slots=n_slots, chunk=chunk), min_width, branch_noise)
