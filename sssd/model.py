"""A loaded model: one loop, its tokenizer, and the numbers that requests get. What LLM and the server are built on.

Owns how the loop is put together from an engine, a drafter and options, and what a request must satisfy. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count

from sssd.answer import Answer
from sssd.config import LoopConfig, SamplingParams
from sssd.constraint import Constraint
from sssd.drafting.base import Drafter
from sssd.engines.base import Engine
from sssd.errors import RequestError
from sssd.grammar import Grammars
from sssd.runtime.budget import Budget, FixedBudget, MeasuredBudget
from sssd.runtime.costs import OnlineCosts
from sssd.runtime.loop import Loop
from sssd.runtime.request import Request, make_request
from sssd.runtime.scheduler import Scheduler
from sssd.spec import EngineSpec
from sssd.text import OutputText, Tokenizer
from sssd.types import DraftOptions, Int32


@dataclass(frozen=True, slots=True)
class Job:
    """What is asked for, checked when it becomes a request."""

    prompt: Sequence[int] | Int32  # n token ids
    params: SamplingParams = SamplingParams()
    options: DraftOptions = DraftOptions()
    max_draft_tokens: int | None = None  # most draft nodes in a step; None = the loop's own limit
    priority: int = 0  # lower goes first
    deadline: float | None = None  # on time.monotonic
    constraint: Constraint | None = None  # what the output must look like


class Model:
    """A loop and what belongs to it. Requests may be made on any thread; the loop itself belongs to one."""

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
        width = _min_width(engine.spec, config)
        budget: Budget = FixedBudget(min_width=width)
        if costs is not None and config.fixed_width is None:
            budget = MeasuredBudget(costs, min_width=width)
        self.engine = engine
        self.drafter = drafter
        self.tokenizer = tokenizer
        self.max_draft_tokens = min(config.max_draft_tokens, (config.fixed_width or engine.spec.max_len) - 1)
        self.loop = Loop(
            engine,
            drafter,
            Scheduler(
                n_slots=config.n_slots,
                chunk=config.chunk if config.fixed_width is None else config.fixed_width,
                n_warm=config.n_warm,
                max_waiting=config.max_waiting,
            ),
            min_width=width,
            branch_noise=0.0 if config.fastest else engine.spec.branch_noise,
            budget=budget,
        )
        self._ids = count(first_request_id)
        self._closed = False

    @property
    def spec(self) -> EngineSpec:
        """The model's facts."""
        return self.engine.spec

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @cached_property
    def grammars(self) -> Grammars:
        """Compiles constraints; made when first asked for. Raises MissingExtra, or RequestError where none can work."""
        if self.spec.scores == "topk":
            raise RequestError(
                f"this bundle keeps the {self.spec.n_scores} best scores of a token only: a constraint needs all; "
                "export it with full logits"
            )
        return Grammars(self.tokenizer.to_json(), vocab_size=self.spec.vocab_size, eos_ids=self.spec.eos_ids)

    def request(self, job: Job) -> Request:
        """Check a job and number it; nothing is queued. Raises RequestError.

        A constraint that is new takes up to a second to compile, the first one of all another one.
        """
        _check_tokens(job.params, self.spec)
        most = self.max_draft_tokens
        wanted = most if job.max_draft_tokens is None else job.max_draft_tokens
        if not 0 <= wanted <= most:
            raise RequestError(f"max_draft_tokens is {wanted}: allowed is 0 to {most}", param="max_draft_tokens")
        return make_request(
            next(self._ids),
            job.prompt,
            job.params,
            max_len=self.spec.max_len,
            vocab_size=self.spec.vocab_size,
            eos_ids=self.spec.eos_ids,
            options=job.options,
            max_draft_tokens=wanted,
            priority=job.priority,
            deadline=job.deadline,
            grammar=None if job.constraint is None else self.grammars.start(job.constraint),
        )

    def answer(self, request: Request) -> Answer:
        """An empty answer to `request`, to be given its step outputs."""
        params = request.params
        text = OutputText(
            self.tokenizer, params.stop, include_stop=params.include_stop, skip_special=params.skip_special
        )
        return Answer(request, text)

    def close(self) -> None:
        """Release the engine and the drafter; calling it again does nothing. The loop must not be running."""
        if not self._closed:
            self._closed = True
            self.engine.close()
            self.drafter.close()


def _min_width(spec: EngineSpec, config: LoopConfig) -> int:
    if config.fixed_width is not None:
        return config.fixed_width
    return 1 if config.fastest else spec.min_width


def _check_tokens(params: SamplingParams, spec: EngineSpec) -> None:
    for name, ids in (("logit_bias", [i for i, _ in params.logit_bias]), ("stop_ids", params.stop_ids)):
        if any(i >= spec.vocab_size for i in ids):
            raise RequestError(f"{name} names token {max(ids)}: allowed is 0 to {spec.vocab_size - 1}", param=name)
    if spec.scores == "topk" and (params.penalizes or params.logit_bias):
        raise RequestError(
            f"this bundle keeps the {spec.n_scores} best scores of a token only: penalties and logit_bias need all; "
            "export it with full logits",
            param="logit_bias" if params.logit_bias else "repetition_penalty",
        )
