"""Replay: drafters against recorded answers, without a model. Owns the rule of the count and the records.

A step sees prompt + answer[:i] and proposes a tree; accepted is its longest root path that the recorded answer follows;
i moves on by accepted + 1. Knows no text: who replays text gives an encoder.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sssd.bench.swi import LevelUse, Swi, level_uses, swi
from sssd.drafting.base import Drafter
from sssd.drafting.segments import SEPARATOR, Segment, no_dead
from sssd.drafting.store_suffix import suffix_array
from sssd.errors import SssdError
from sssd.types import DraftJob, DraftOptions, DraftTree, Int32, Source

Encode = Callable[[str], list[int]]


class Pair(NamedTuple):
    """A prompt and the answer recorded for it, int32 [n] each."""

    prompt: Int32
    answer: Int32


@dataclass(frozen=True, slots=True)
class ReplaySet:
    """What is replayed, and documents to draft from where the file brings any."""

    name: str
    pairs: tuple[Pair, ...]
    documents: tuple[Int32, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplayRecord:
    """One drafter on one set at one budget. Times in microseconds, of one row through Python."""

    set: str
    drafter: str
    budget: int
    datastore: str | None
    tokens_per_step: float
    propose_us_p50: float
    propose_us_p99: float
    accept_us_p50: float
    accept_us_p99: float
    begin_us_p50: float
    begin_us_p99: float
    n_tokens: int
    n_steps: int
    accepted_lengths: tuple[int, ...]  # steps by the number of accepted draft tokens
    drafted: tuple[int, ...]  # nodes by Source
    accepted: tuple[int, ...]  # nodes by Source
    levels: tuple[LevelUse, ...]  # the drafter's models
    swi: Swi

    def to_json(self) -> dict[str, Any]:
        """The record with its per-source counts named."""
        names = [source.name.lower() for source in Source]
        named = {key: dict(zip(names, getattr(self, key), strict=True)) for key in ("drafted", "accepted")}
        return asdict(self) | named


# ---- sets -------------------------------------------------------------------------------------


def load_set(path: Path, encode: Encode | None = None, *, limit: int | None = None) -> ReplaySet:
    """A token set (.npz) or a file of JSON lines, its first `limit` records. Raises SssdError for anything else."""
    if not path.is_file():
        raise SssdError(f"no file {path}: give an .npz token set or a .jsonl of prompts and answers")
    if path.suffix == ".npz":
        return _from_npz(path, limit)
    if encode is None:
        raise SssdError(f"{path} is text: give a tokenizer to replay it")
    pairs: list[Pair] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if limit is not None and number > limit:
                break
            pairs += _pairs_of(line, encode, f"{path}:{number}")
    return ReplaySet(path.stem, tuple(pair for pair in pairs if len(pair.answer) > 0))


def _from_npz(path: Path, limit: int | None) -> ReplaySet:
    try:
        with np.load(path) as arrays:
            cut = {
                key: np.split(arrays[key].astype(np.int32), arrays[key.lower() + "o"][1:-1]) for key in ("P", "A", "S")
            }
    except (KeyError, ValueError, OSError) as e:
        raise SssdError(f"{path} is no token set ({e}): it needs the arrays P, po, A, ao, S, so") from e
    pairs = [Pair(prompt, answer) for prompt, answer in zip(cut["P"], cut["A"], strict=True) if len(answer) > 0]
    return ReplaySet(path.stem, tuple(pairs[:limit]), tuple(d for d in cut["S"] if len(d) > 0))


def _pairs_of(line: str, encode: Encode, where: str) -> Iterator[Pair]:
    """Every answer of a record with all that stands before it as its prompt."""
    try:
        record = json.loads(line)
        turns = list(_turns(record))
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise SssdError(f"{where}: no answer in it ({e}): it needs prompt or turns with answer, or messages") from e
    context: list[int] = []
    for text, is_answer in turns:
        ids = encode(text)
        if is_answer:
            yield Pair(np.array(context, np.int32), np.array(ids, np.int32))
        context += ids


def _turns(record: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Texts in order, and whether each is a model's."""
    if "messages" in record:
        for message in record["messages"]:
            yield message["content"], message["role"] in ("assistant", "gpt", "function_call")
        return
    answers = record["answer"] if isinstance(record["answer"], list) else [record["answer"]]
    prompts = record["turns"] if "turns" in record else [record["prompt"]] * len(answers)
    for prompt, answer in zip(prompts, answers, strict=False):
        yield prompt, False
        yield answer, True


def documents_segment(documents: Sequence[Int32], source: Source) -> Segment:
    """A segment in memory. Raises MissingExtra without the suffix sorter."""
    tokens = np.concatenate([np.append(d, np.int32(SEPARATOR)) for d in documents]).astype(np.int32)
    suffixes = suffix_array(tokens, vocab_size=int(tokens.max()) + 1).copy()
    return Segment(tokens, suffixes, no_dead(), source)


# ---- the replay -------------------------------------------------------------------------------


class _Count:
    """What a replay adds up."""

    def __init__(self, budget: int) -> None:
        self.n_tokens = 0
        self.lengths = [0] * (budget + 1)
        self.drafted = [0] * len(Source)
        self.accepted = [0] * len(Source)
        self.times: dict[str, list[int]] = {"begin": [], "propose": [], "accept": []}

    def took(self, what: str, since_ns: int) -> None:
        self.times[what].append(time.perf_counter_ns() - since_ns)

    def us(self, what: str, percentile: float) -> float:
        return float(np.percentile(self.times[what], percentile)) / 1000 if self.times[what] else 0.0


def accepted_path(tree: DraftTree, answer: Sequence[int], start: int) -> list[int]:
    """The nodes of the longest root path that answer[start:] follows; siblings never carry equal tokens."""
    path: list[int] = []
    at = -1
    for i, (token, parent) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)):
        if parent == at and start + len(path) < len(answer) and token == answer[start + len(path)]:
            path.append(i)
            at = i
    return path


def _replay_pair(drafter: Drafter, request_id: int, pair: Pair, budget: int, count: _Count) -> None:
    answer = pair.answer.tolist()
    jobs = [DraftJob(request_id, budget)]
    done = 0
    while done < len(answer):
        start = time.perf_counter_ns()
        tree = drafter.propose(jobs)[0]
        count.took("propose", start)
        path = accepted_path(tree, answer, done)
        committed = pair.answer[done : done + len(path) + 1]
        start = time.perf_counter_ns()
        drafter.accept(request_id, committed, tree)
        count.took("accept", start)
        count.lengths[len(path)] += 1
        for source in tree.source.tolist():
            count.drafted[source] += 1
        for i in path:
            count.accepted[int(tree.source[i])] += 1
        done += len(committed)
    count.n_tokens += len(answer)


def replay(
    drafter: Drafter,
    replayed: ReplaySet,
    *,
    budget: int,
    name: str,
    datastore: str | None = None,
    namespaces: tuple[str, ...] = ("default",),
    settle: Callable[[], None] | None = None,
    finished: Callable[[Pair], None] | None = None,
    target_bytes: int = 0,
) -> ReplayRecord:
    """Replay a set, pair after pair. `settle` waits for prompts indexed aside; `finished` hears of every pair's end.

    A drafter with models of its own has seen nothing before; they cost what they weigh against `target_bytes`.
    """
    if budget < 1:
        raise SssdError(f"the budget is {budget}: it must be 1 or more nodes")
    count = _Count(budget)
    options = DraftOptions(namespaces=namespaces, remember=False)
    for request_id, pair in enumerate(replayed.pairs):
        start = time.perf_counter_ns()
        drafter.begin(request_id, pair.prompt, options)
        count.took("begin", start)
        if settle is not None:
            settle()
        _replay_pair(drafter, request_id, pair, budget, count)
        drafter.end(request_id)
        if finished is not None:
            finished(pair)
    n_steps = sum(count.lengths)
    levels = level_uses(drafter)
    return ReplayRecord(
        set=replayed.name,
        drafter=name,
        budget=budget,
        datastore=datastore,
        tokens_per_step=count.n_tokens / n_steps if n_steps else 0.0,
        propose_us_p50=count.us("propose", 50),
        propose_us_p99=count.us("propose", 99),
        accept_us_p50=count.us("accept", 50),
        accept_us_p99=count.us("accept", 99),
        begin_us_p50=count.us("begin", 50),
        begin_us_p99=count.us("begin", 99),
        n_tokens=count.n_tokens,
        n_steps=n_steps,
        accepted_lengths=tuple(count.lengths),
        drafted=tuple(count.drafted),
        accepted=tuple(count.accepted),
        levels=levels,
        swi=swi(count.n_tokens, max(n_steps, 1), levels, target_bytes=target_bytes, target_seconds=None),
    )
