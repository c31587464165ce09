"""The Python API: prompts in, completions out. Owns the loop that they run in and the answers that grow.

Knows the parts' public doors only; a step is the loop's business, a token the target's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from sssd.answer import Answer, Completion, Piece
from sssd.config import LoopConfig, SamplingParams
from sssd.drafting.base import Drafter
from sssd.engines.base import Engine
from sssd.errors import EngineError, RequestError
from sssd.runtime.budget import Budget, BudgetStats, FixedBudget, MeasuredBudget
from sssd.runtime.costs import OnlineCosts
from sssd.runtime.loop import Loop, PhaseTimes
from sssd.runtime.request import Request, make_request
from sssd.runtime.scheduler import Scheduler
from sssd.spec import EngineSpec
from sssd.text import Message, OutputText, Tokenizer
from sssd.types import DraftOptions, Int32

Prompt = str | Int32  # text, or int32 [n] token ids


class LLM:
    """A loaded model that answers prompts. Use it from one thread, and close it (or use `with`)."""

    def __init__(
        self,
        engine: Engine,
        drafter: Drafter,
        tokenizer: Tokenizer,
        config: LoopConfig,
        *,
        costs: OnlineCosts | None = None,
        first_request_id: int = 0,
    ) -> None:
        """`costs` decide how much of the drafts is verified in a step; without them, all of them are."""
        chunk = config.chunk if config.fixed_width is None else config.fixed_width
        width = _min_width(engine.spec, config)
        budget: Budget = FixedBudget(min_width=width)
        if costs is not None and config.fixed_width is None:
            budget = MeasuredBudget(costs, min_width=width)
        self._engine = engine
        self._drafter = drafter
        self._tokenizer = tokenizer
        self._max_draft = min(config.max_draft_tokens, (config.fixed_width or engine.spec.max_len) - 1)
        self._loop = Loop(
            engine,
            drafter,
            Scheduler(n_slots=config.n_slots, chunk=chunk, n_warm=config.n_warm, max_waiting=config.max_waiting),
            min_width=width,
            branch_noise=0.0 if config.fastest else engine.spec.branch_noise,
            budget=budget,
        )
        self._answers: dict[int, Answer] = {}
        self._next_id = first_request_id
        self._closed = False

    @property
    def spec(self) -> EngineSpec:
        """The model's facts."""
        return self._engine.spec

    @property
    def tokenizer(self) -> Tokenizer:
        """The bundle's tokenizer."""
        return self._tokenizer

    @property
    def phase_times(self) -> PhaseTimes:
        """Where the loop's time went, since loading."""
        return self._loop.times

    @property
    def budget_stats(self) -> BudgetStats:
        """How much was verified, how often, and whether it kept its promise."""
        return self._loop.budget.stats()

    @overload  # a str is a sequence of str as well: the first match is meant
    def generate(  # type: ignore[overload-overlap]
        self, prompts: Prompt, params: SamplingParams = ..., *, options: DraftOptions = ...
    ) -> Completion: ...

    @overload
    def generate(
        self, prompts: Sequence[Prompt], params: SamplingParams = ..., *, options: DraftOptions = ...
    ) -> list[Completion]: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams = SamplingParams(),
        *,
        options: DraftOptions = DraftOptions(),
    ) -> Completion | list[Completion]:
        """Answer one prompt, or several together in one batch; a prompt is text or int32 token ids.

        Raises RequestError before anything runs when a prompt does not fit. A completion whose finish_reason is
        "error" says why in `error`; the others are not affected.
        """
        if isinstance(prompts, str | np.ndarray):
            return self.generate([prompts], params, options=options)[0]
        answers = self._queue(self._requests(prompts, params, options))
        try:
            while any(a.completion is None for a in answers):
                self.step()
            return [a.completion for a in answers if a.completion is not None]
        finally:
            self._drop(answers)

    def submit(
        self, prompt: Prompt, params: SamplingParams = SamplingParams(), *, options: DraftOptions = DraftOptions()
    ) -> Answer:
        """Queue one prompt and return its answer, which grows with every `step`; `drop` it when done with it.

        For callers with a loop of their own. Raises RequestError.
        """
        return self._queue(self._requests([prompt], params, options))[0]

    def step(self) -> None:
        """One step over all that is queued; there must be something (`busy`). Raises EngineError."""
        for out in self._loop.step():
            answer = self._answers[out.request_id]
            answer.take(out)
            if answer.completion is not None and out.finish is None:
                self._loop.cancel(out.request_id)

    def drop(self, answer: Answer) -> None:
        """Forget an answer of `submit`, and cancel its request if it still runs."""
        self._drop([answer])

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs."""
        return len(self._loop.scheduler) > 0

    def chat(self, messages: Sequence[Message], params: SamplingParams = SamplingParams()) -> Completion:
        """Answer a conversation; the bundle's chat template writes the prompt. Raises RequestError without one."""
        return self.generate(self.chat_ids(messages), params)

    def chat_ids(self, messages: Sequence[Message]) -> Int32:
        """The conversation as a prompt, int32 [n]."""
        return np.array(self._tokenizer.encode(self._tokenizer.chat_prompt(messages), special=False), np.int32)

    def stream(
        self, prompt: Prompt, params: SamplingParams = SamplingParams(), *, options: DraftOptions = DraftOptions()
    ) -> Iterator[Piece]:
        """Answer one prompt piece by piece; the text of the pieces joined is the completion's.

        The request is queued when the first piece is asked for; closing the iterator cancels it. Raises RequestError.
        """
        return self._pieces(self._requests([prompt], params, options))

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
        if not self._closed:
            self._closed = True
            self._engine.close()
            self._drafter.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _requests(self, prompts: Sequence[Prompt], params: SamplingParams, options: DraftOptions) -> list[Request]:
        """Check every prompt; nothing is queued yet."""
        if self._closed:
            raise EngineError("this LLM is closed: load the bundle again")
        _check_tokens(params, self.spec)
        requests = []
        for prompt in prompts:
            requests.append(
                make_request(
                    self._next_id,
                    self._tokenizer.encode(prompt) if isinstance(prompt, str) else prompt,
                    params,
                    max_len=self.spec.max_len,
                    vocab_size=self.spec.vocab_size,
                    eos_ids=self.spec.eos_ids,
                    options=options,
                    max_draft_tokens=self._max_draft,
                )
            )
            self._next_id += 1
        return requests

    def _queue(self, requests: list[Request]) -> list[Answer]:
        answers: list[Answer] = []
        try:
            for request in requests:
                self._loop.add(request)
                answers.append(Answer(request, OutputText(self._tokenizer, request.params.stop)))
                self._answers[request.id] = answers[-1]
        except BaseException:
            self._drop(answers)
            raise
        return answers

    def _drop(self, answers: list[Answer]) -> None:
        for answer in answers:
            self._loop.cancel(answer.request_id)
            del self._answers[answer.request_id]


def _min_width(spec: EngineSpec, config: LoopConfig) -> int:
    if config.fixed_width is not None:
        return config.fixed_width
    return 1 if config.fastest else spec.min_width


def _check_tokens(params: SamplingParams, spec: EngineSpec) -> None:
    for name, ids in (("logit_bias", [i for i, _ in params.logit_bias]), ("stop_ids", params.stop_ids)):
        if any(i >= spec.vocab_size for i in ids):
            raise RequestError(f"{name} names token {max(ids)}: allowed is 0 to {spec.vocab_size - 1}")
    if spec.scores == "topk" and (params.penalizes or params.logit_bias):
        raise RequestError(
            f"this bundle keeps the {spec.n_scores} best scores of a token only: penalties and logit_bias need all; "
            "export it with full logits"
        )
