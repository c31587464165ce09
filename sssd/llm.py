"""The Python API: prompts in, completions out. Owns the answers that grow; steps the loop in the caller's thread.

A step is the loop's business, a token the target's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from sssd.answer import Answer, Completion, Piece
from sssd.config import SamplingParams
from sssd.constraint import Constraint
from sssd.errors import EngineError
from sssd.model import Job, Model
from sssd.runtime.budget import BudgetStats
from sssd.runtime.loop import PhaseTimes
from sssd.runtime.request import Request
from sssd.spec import EngineSpec
from sssd.text import Message, Tokenizer
from sssd.types import DraftOptions, Int32

Prompt = str | Int32  # text, or int32 [n] token ids


class LLM:
    """A loaded model that answers prompts. Use it from one thread, and close it (or use `with`)."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._answers: dict[int, Answer] = {}

    @property
    def spec(self) -> EngineSpec:
        """The model's facts."""
        return self._model.spec

    @property
    def tokenizer(self) -> Tokenizer:
        """The bundle's tokenizer."""
        return self._model.tokenizer

    @property
    def phase_times(self) -> PhaseTimes:
        """Where the loop's time went, since loading."""
        return self._model.loop.times

    @property
    def budget_stats(self) -> BudgetStats:
        """How much was verified, how often, and whether it kept its promise."""
        return self._model.loop.budget.stats()

    @overload  # a str is a sequence of str as well: the first match is meant
    def generate(  # type: ignore[overload-overlap]
        self,
        prompts: Prompt,
        params: SamplingParams = ...,
        *,
        options: DraftOptions = ...,
        constraint: Constraint | None = ...,
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams = ...,
        *,
        options: DraftOptions = ...,
        constraint: Constraint | None = ...,
    ) -> list[Completion]: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams = SamplingParams(),
        *,
        options: DraftOptions = DraftOptions(),
        constraint: Constraint | None = None,
    ) -> Completion | list[Completion]:
        """Answer one prompt, or several together in one batch; a prompt is text or int32 token ids.

        Under a `constraint` every output is of its form, or cut off where max_tokens ends it. Raises RequestError
        before anything runs when a prompt does not fit or the constraint cannot be met. A completion whose
        finish_reason is "error" says why in `error`; the others are not affected.
        """
        if isinstance(prompts, str | np.ndarray):
            return self.generate([prompts], params, options=options, constraint=constraint)[0]
        answers = self._queue(self._requests(prompts, params, options, constraint))
        try:
            while any(a.completion is None for a in answers):
                self.step()
            return [a.completion for a in answers if a.completion is not None]
        finally:
            self._drop(answers)

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams = SamplingParams(),
        *,
        options: DraftOptions = DraftOptions(),
        constraint: Constraint | None = None,
    ) -> Answer:
        """Queue one prompt and return its answer, which grows with every `step`; `drop` it when done with it.

        For callers with a loop of their own. Raises RequestError.
        """
        return self._queue(self._requests([prompt], params, options, constraint))[0]

    def step(self) -> None:
        """One step over all that is queued; there must be something (`busy`). Raises EngineError."""
        for out in self._model.loop.step():
            answer = self._answers[out.request_id]
            answer.take(out)
            if answer.completion is not None and out.finish is None:
                self._model.loop.cancel(out.request_id)

    def drop(self, answer: Answer) -> None:
        """Forget an answer of `submit`, and cancel its request if it still runs."""
        self._drop([answer])

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs."""
        return len(self._model.loop.scheduler) > 0

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams = SamplingParams(),
        *,
        constraint: Constraint | None = None,
    ) -> Completion:
        """Answer a conversation; the bundle's chat template writes the prompt. Raises RequestError without one."""
        return self.generate(self.chat_ids(messages), params, constraint=constraint)

    def chat_ids(self, messages: Sequence[Message]) -> Int32:
        """The conversation as a prompt, int32 [n]."""
        return np.array(self.tokenizer.encode(self.tokenizer.chat_prompt(messages), special=False), np.int32)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams = SamplingParams(),
        *,
        options: DraftOptions = DraftOptions(),
        constraint: Constraint | None = None,
    ) -> Iterator[Piece]:
        """Answer one prompt piece by piece; the text of the pieces joined is the completion's.

        The request is queued when the first piece is asked for; closing the iterator cancels it. Raises RequestError.
        """
        return self._pieces(self._requests([prompt], params, options, constraint))

    def _pieces(self, requests: list[Request]) -> Iterator[Piece]:
        answers = self._queue(requests)
        (answer,) = answers
        try:
            while answer.completion is None or answer.pieces:
                if answer.pieces:
                    yield answer.pieces.popleft()
                else:
                    self.step()
        finally:
            self._drop(answers)

    def close(self) -> None:
        """Release the engine and the drafter; calling it again does nothing."""
        self._model.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _requests(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        options: DraftOptions,
        constraint: Constraint | None,
    ) -> list[Request]:
        """Check every prompt; nothing is queued yet."""
        if self._model.closed:
            raise EngineError("this LLM is closed: load the bundle again")
        return [
            self._model.request(Job(self._ids(prompt), params, options, constraint=constraint)) for prompt in prompts
        ]

    def _ids(self, prompt: Prompt) -> Sequence[int] | Int32:
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt

    def _queue(self, requests: list[Request]) -> list[Answer]:
        answers: list[Answer] = []
        try:
            for request in requests:
                self._model.loop.add(request)
                answers.append(self._model.answer(request))
                self._answers[request.id] = answers[-1]
        except BaseException:
            self._drop(answers)
            raise
        return answers

    def _drop(self, answers: list[Answer]) -> None:
        for answer in answers:
            self._model.loop.cancel(answer.request_id)
            del self._answers[answer.request_id]
