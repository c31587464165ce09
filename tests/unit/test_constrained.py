"""Constrained output through the whole step: the same with any drafts, ends where it may, forced tokens for free."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import numpy as np
import pytest

pytest.importorskip("llguidance")  # brought by the extras structured and dev

from sssd.config import SamplingParams
from sssd.constraint import Constraint
from sssd.drafting.base import NullDrafter
from sssd.engines.scripted import ScriptedEngine
from sssd.errors import RequestError
from sssd.runtime.request import Request
from sssd.types import DraftJob, DraftTree, Source, StepOutput
from tests.helpers.grammars import EOS, grammars, ids, random_constraint, text, vocab_size
from tests.helpers.scripts import GarbageTrees, Oracle, make_loop, random_script, request, run, tokens_of

V = vocab_size()
PERSON = Constraint.json_schema(
    {
        "type": "object",
        "properties": {"name": {"enum": ["yes", "no"]}, "age": {"type": "integer", "maximum": 99, "minimum": 0}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)


def engine(**options) -> ScriptedEngine:
    return ScriptedEngine(random_script(V), vocab_size=V, **options)


def constrained(
    i: int, constraint: Constraint | None, params: SamplingParams, *, prompt: Sequence[int] = (5, 6), **options
) -> Request:
    grammar = None if constraint is None else grammars().start(constraint)
    return request(i, prompt, params, vocab_size=V, eos_ids=EOS, grammar=grammar, **options)


def jobs(seed: int, params: dict, *, max_draft: int = 9) -> list[Request]:
    """Six constrained requests and a free one."""
    rng = np.random.default_rng(seed)
    return [
        constrained(
            i,
            None if i == 3 else random_constraint(rng),
            SamplingParams(max_tokens=int(rng.integers(1, 40)), seed=seed * 100 + i, **params),
            prompt=rng.integers(2, V, int(rng.integers(1, 9))).tolist(),
            max_draft=max_draft,
        )
        for i in range(7)
    ]


MODES = [
    {},
    {"min_tokens": 1, "logprobs": 2},
    {"temperature": 0.9},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 8, "min_p": 0.01},
    {"repetition_penalty": 1.4, "presence_penalty": 0.3, "frequency_penalty": 0.5},
]


@pytest.mark.parametrize("noise", [0.0, 0.3, None])
@pytest.mark.parametrize("params", MODES)
def test_constrained_output_is_the_same_with_any_drafts(params: dict, noise: float | None) -> None:
    for seed in range(3):
        plain = tokens_of(run(make_loop(engine(), NullDrafter(), n_slots=1), jobs(seed, params, max_draft=0)))
        full = {r.id: r.tokens[: r.prompt_len].tolist() + plain[r.id] for r in jobs(seed, params)}
        drafters = [NullDrafter(), GarbageTrees(seed, V), *(Oracle(full, decoys=d, vocab=V) for d in (False, True))]
        for drafter in drafters:
            loop = make_loop(engine(branch_noise=noise), drafter, n_slots=3, chunk=12, branch_noise=noise)
            assert tokens_of(run(loop, jobs(seed, params))) == plain


@pytest.mark.parametrize("seed", range(12))
def test_an_output_that_ends_is_of_its_form_and_one_that_does_not_is_on_the_way(seed: int) -> None:
    rng = np.random.default_rng(seed)
    constraint = random_constraint(rng)
    params = SamplingParams(max_tokens=60, temperature=1.0, seed=seed)
    outputs = run(make_loop(engine(), GarbageTrees(seed, V)), [constrained(0, constraint, params)])[0]
    tokens = [t for o in outputs for t in o.tokens]
    twin = grammars().start(constraint)
    assert all(bool(twin.allowed(tokens[:i])[t]) for i, t in enumerate(tokens)), "every mask was kept to"
    assert outputs[-1].finish == ("stop" if tokens[-1] in EOS else "length")
    if constraint.kind == "json_schema" and outputs[-1].finish == "stop":
        json.loads(text(tokens))


def counts(outputs: list[StepOutput], source: Source) -> tuple[int, int]:
    return sum(o.n_drafted[source] for o in outputs), sum(o.n_accepted[source] for o in outputs)


def test_forced_tokens_cost_no_steps_of_their_own_and_are_always_right() -> None:
    params = SamplingParams(max_tokens=60)
    plain = run(make_loop(engine(), NullDrafter()), [constrained(0, PERSON, params, max_draft=0)])[0]
    free = run(make_loop(engine(), NullDrafter()), [constrained(0, PERSON, params, max_draft=30)])[0]
    assert [t for o in free for t in o.tokens] == [t for o in plain for t in o.tokens]
    assert re.fullmatch(r'\{"name": "(yes|no)", "age": \d\d?\}', text([t for o in free for t in o.tokens]))
    drafted, accepted = counts(free, Source.GRAMMAR)
    assert accepted == drafted > 5
    assert len(plain) - len(free) == accepted, "each of them is a step saved"


class Guesses(NullDrafter):
    """Says one text again and again, and what follows it."""

    def __init__(self, guess: str) -> None:
        self.guess = ids(guess)

    def propose(self, jobs: Sequence[DraftJob]) -> list[DraftTree]:
        return [self._chain(self.guess[: job.budget]) for job in jobs]

    def _chain(self, tokens: list[int]) -> DraftTree:
        n = len(tokens)
        ones = np.ones(n, np.float32)
        return DraftTree(np.array(tokens, np.int32), np.arange(-1, n - 1, dtype=np.int32), ones, np.zeros(n, np.uint8))


@pytest.mark.parametrize("tail", ["", "\n", "\n\n```", '{"name"'])
def test_a_draft_beyond_the_end_is_cut_there_and_ends_no_request(tail: str) -> None:
    answer = Constraint.regex('\\{"age": 3\\}')
    loop = make_loop(engine(), Guesses('{"age": 3}' + tail))
    outputs = run(loop, [constrained(0, answer, SamplingParams(max_tokens=40), max_draft=30)])[0]
    assert text([t for o in outputs for t in o.tokens]) == '{"age": 3}'
    assert outputs[-1].finish == "stop"
    assert sum(sum(o.n_drafted) for o in outputs) <= len(ids('{"age": 3}')), "what it refuses is not verified"


def test_it_ends_where_nothing_else_is_left_even_before_min_tokens() -> None:
    params = SamplingParams(max_tokens=20, min_tokens=10)
    short = run(make_loop(engine(), NullDrafter()), [constrained(0, Constraint.choice(["yes"]), params)])[0]
    assert short[-1].finish == "stop"
    assert text([t for o in short for t in o.tokens]) == "yes"
    long = run(make_loop(engine(), NullDrafter()), [constrained(0, Constraint.regex("[0-9]+"), params)])[0]
    assert len([t for o in long for t in o.tokens]) > 10


def test_a_fault_ends_its_own_request_with_an_error_and_no_tokens() -> None:
    bad, good = (constrained(i, PERSON, SamplingParams(max_tokens=30)) for i in range(2))
    assert bad.grammar is not None
    bad.grammar.advance(ids("x"))
    outputs = run(make_loop(engine(), GarbageTrees(0, V)), [bad, good])
    assert [(o.tokens, o.finish) for o in outputs[0]] == [((), "error")]
    assert "cannot go on" in str(outputs[0][0].error)
    assert outputs[1][-1].finish == "stop"


def test_a_constraint_with_ignore_eos_is_refused() -> None:
    with pytest.raises(RequestError, match="ignore_eos"):
        constrained(0, PERSON, SamplingParams(max_tokens=9, ignore_eos=True))
