"""What a benchmark asks: prompts from JSONL files, by task, and when they arrive. Owns the reading of such files.

Knows no engine, no mode and no clock; a tokenizer is all it needs to see whether a prompt fits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sssd.errors import RequestError, SssdError
from sssd.text import Message, Tokenizer
from sssd.types import Int32

_ROLES = {"system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant"}


@dataclass(frozen=True, slots=True)
class Question:
    """One record of a data file, not yet tokenized."""

    id: str
    task: str  # the part before the slash
    messages: tuple[Message, ...]  # up to the user turn that is to be answered


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question as the model reads it."""

    id: str
    task: str
    token_ids: Int32  # int32 [n]


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A question that could not be asked, and why."""

    id: str
    task: str
    reason: str


@dataclass(frozen=True, slots=True)
class Workload:
    """The prompts of a benchmark, grouped by task in the order in which the tasks came."""

    prompts: tuple[Prompt, ...]
    passed_over: tuple[PassedOver, ...]

    @property
    def tasks(self) -> tuple[str, ...]:
        """Every task, once."""
        return tuple(dict.fromkeys(p.task for p in self.prompts))

    def of_task(self, task: str) -> tuple[Prompt, ...]:
        """The prompts of one task."""
        return tuple(p for p in self.prompts if p.task == task)

    @property
    def longest(self) -> Prompt:
        """The prompt of the most tokens."""
        return max(self.prompts, key=lambda p: len(p.token_ids))


class Arrival(NamedTuple):
    """A prompt that comes `at` so many seconds after the start."""

    at: float
    prompt: Prompt


# ---- reading ------------------------------------------------------------------------------------


def read_questions(files: Sequence[Path]) -> list[Question]:
    """Every record of JSONL files, in order.

    A record holds `prompt` (text), `turns` (user turns, of which the first is asked) or `messages` (a dialogue, which
    is asked up to its last user turn; where other roles speak, such as tools, up to the last one before them). It may
    hold `id` and `task`; the file's name stands in for a missing task. Raises SssdError naming file and line.
    """
    if not files:
        raise SssdError("no prompts: give --data one or more JSONL files with `prompt`, `turns` or `messages`")
    found = [question for file in files for question in _read_file(file)]
    if not found:
        raise SssdError(f"no prompts in {', '.join(map(str, files))}: give JSONL files with one record a line")
    return found


def _read_file(file: Path) -> Iterator[Question]:
    try:
        lines = file.read_text("utf-8").split("\n")
    except OSError as e:
        raise SssdError(f"cannot read {file}: {e.strerror}; give --data a JSONL file") from None
    except UnicodeDecodeError as e:
        raise SssdError(f"{file} is not UTF-8 (byte {e.start}): convert it first") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _question(line, f"{file}:{number}", default_id=f"{file.stem}/{number}", default_task=file.stem)


def _question(line: str, where: str, *, default_id: str, default_task: str) -> Question:
    try:
        record = json.loads(line)
    except ValueError as e:
        raise SssdError(f"{where} is not JSON: {e}; one record a line is needed") from None
    if not isinstance(record, dict):
        raise SssdError(f"{where} is no record: give an object with `prompt`, `turns` or `messages`")
    messages = _messages(record)
    if messages is None:
        raise SssdError(
            f"{where} has no text to ask: allowed are `prompt` (text), `turns` (a list of texts) or `messages` "
            "(role and content, of system, user and assistant, with a user turn)"
        )
    task = str(record.get("task", default_task)).split("/")[0]
    return Question(str(record.get("id", default_id)), task, messages)


def _messages(record: dict[str, Any]) -> tuple[Message, ...] | None:
    """The turns to ask; None where the record holds nothing that can be asked."""
    match record:
        case {"prompt": str(text)} if text:
            return (Message("user", text),)
        case {"turns": [str(text), *_]} if text:
            return (Message("user", text),)
        case {"messages": [*turns]}:
            return _dialogue(turns)
    return None


def _dialogue(turns: Sequence[object]) -> tuple[Message, ...] | None:
    """Up to the last user turn before any role but a conversation's own: few chat templates can write others."""
    messages = []
    for turn in turns:
        match turn:
            case {"role": str(role), "content": str(content)} if role in _ROLES:
                messages.append(Message(_ROLES[role], content))
            case _:
                break
    while messages and messages[-1].role != "user":
        messages.pop()
    return tuple(messages) or None


# ---- choosing -----------------------------------------------------------------------------------


def choose(
    questions: Sequence[Question],
    tokenizer: Tokenizer,
    *,
    max_prompt: int,
    tasks: Sequence[str] = (),
    limit: int | None = None,
    chat: bool,
) -> Workload:
    """The first `limit` questions of each task that fit `max_prompt` tokens; `tasks` keeps those only.

    What does not fit, or what the chat template refuses, is passed over and listed; it does not count towards the
    limit. Raises SssdError for an unknown task and for a task of which nothing is left.
    """
    known = tuple(dict.fromkeys(q.task for q in questions))
    for task in tasks:
        if task not in known:
            raise SssdError(f"no prompts of task {task!r}: there are {', '.join(known)}")
    prompts: list[Prompt] = []
    passed_over: list[PassedOver] = []
    for task in [t for t in known if not tasks or t in tasks]:
        fit = 0
        for question in (q for q in questions if q.task == task):
            if limit is not None and fit == limit:
                break
            made = _prompt(question, tokenizer, max_prompt=max_prompt, chat=chat)
            if isinstance(made, PassedOver):
                passed_over.append(made)
            else:
                prompts.append(made)
                fit += 1
        if not fit:
            raise SssdError(f"no prompt of task {task!r} can be asked: {passed_over[-1].reason}")
    return Workload(tuple(prompts), tuple(passed_over))


def _prompt(question: Question, tokenizer: Tokenizer, *, max_prompt: int, chat: bool) -> Prompt | PassedOver:
    try:
        if chat:
            ids = tokenizer.encode(tokenizer.chat_prompt(question.messages), special=False)
        else:
            ids = tokenizer.encode("\n\n".join(m.content for m in question.messages))
    except RequestError as e:
        return PassedOver(question.id, question.task, str(e))
    if not 0 < len(ids) <= max_prompt:
        return PassedOver(question.id, question.task, f"it has {len(ids)} tokens, and 1 to {max_prompt} fit")
    return Prompt(question.id, question.task, np.array(ids, np.int32))


# ---- arriving -----------------------------------------------------------------------------------


def together(prompts: Iterable[Prompt]) -> list[Arrival]:
    """All at the start."""
    return [Arrival(0.0, prompt) for prompt in prompts]


def poisson(prompts: Sequence[Prompt], *, rate: float, seed: int) -> list[Arrival]:
    """In random order, `rate` a second on average, at times of a Poisson process; the same for the same seed."""
    assert rate > 0
    random = np.random.default_rng(seed)
    order = random.permutation(len(prompts))
    times = np.cumsum(random.exponential(1 / rate, len(prompts)))
    return [Arrival(float(at), prompts[i]) for at, i in zip(times, order, strict=True)]


def batches(prompts: Sequence[Prompt], size: int) -> list[tuple[Prompt, ...]]:
    """Consecutive prompts, `size` at a time; the last batch may hold fewer."""
    return [tuple(prompts[i : i + size]) for i in range(0, len(prompts), size)]
