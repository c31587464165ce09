"""Log-probabilities of a prompt: one a token behind the first, however the prompt is read."""

from __future__ import annotations

import numpy as np
import pytest

from sssd.config import SamplingParams
from sssd.drafting.base import NullDrafter
from sssd.engines.scripted import ScriptedEngine
from sssd.runtime.loop import Loop
from sssd.runtime.scheduler import Scheduler
from sssd.types import StepOutput, TokenLogprob
from tests.helpers.scripts import VOCAB, GarbageTrees, make_loop, random_script, request, run, tokens_of

PROMPT = np.random.default_rng(5).integers(0, VOCAB, 40).tolist()


def engine() -> ScriptedEngine:
    return ScriptedEngine(random_script(), vocab_size=VOCAB)


def told(outputs: list[StepOutput]) -> list[TokenLogprob]:
    return [one for out in outputs for one in out.prompt_logprobs]


def expected(prompt: list[int]) -> list[float]:
    """By hand: the script's scores at every prefix."""
    script = random_script()
    values = []
    for i in range(1, len(prompt)):
        scores = script(np.array(prompt[:i], np.int32)).astype(np.float64)
        values.append(float(scores[prompt[i]] - np.log(np.exp(scores).sum())))
    return values


@pytest.mark.parametrize("chunk", [1, 7, 39, 40, 64])
def test_every_prompt_token_but_the_first_has_one_in_any_chunks(chunk: int) -> None:
    params = SamplingParams(max_tokens=6, prompt_logprobs=2)
    outputs = run(make_loop(engine(), GarbageTrees(0), chunk=chunk), [request(0, PROMPT, params)])[0]
    assert [one.token for one in told(outputs)] == PROMPT[1:]
    assert [one.logprob for one in told(outputs)] == pytest.approx(expected(PROMPT), abs=1e-5)
    assert all(len(one.top) == 2 for one in told(outputs))
    without = run(make_loop(engine(), NullDrafter()), [request(0, PROMPT, SamplingParams(max_tokens=6))])
    assert tokens_of({0: outputs}) == tokens_of(without)


def test_beside_others_and_after_the_same_prompt_was_kept_nothing_is_missing() -> None:
    loop = Loop(engine(), GarbageTrees(1), Scheduler(n_slots=2, chunk=16, n_warm=1), min_width=1)
    plain, asks = SamplingParams(max_tokens=8), SamplingParams(max_tokens=8, prompt_logprobs=0, logprobs=0)
    outputs = run(loop, [request(0, PROMPT, plain), request(1, PROMPT, plain), request(2, PROMPT, asks)])
    assert [one.logprob for one in told(outputs[2])] == pytest.approx(expected(PROMPT), abs=1e-5)
    assert told(outputs[0]) == told(outputs[1]) == []
    assert len(set(map(tuple, tokens_of(outputs).values()))) == 1


@pytest.mark.parametrize("at", range(2, 8))
def test_a_request_that_is_read_again_tells_each_token_once(at: int) -> None:
    loop = make_loop(engine(), NullDrafter(), n_slots=2, chunk=16)
    loop.add(request(0, [1, 2], SamplingParams(max_tokens=30)))
    loop.add(request(1, PROMPT, SamplingParams(max_tokens=8, prompt_logprobs=0)))
    outputs: list[StepOutput] = []
    step = 0
    while len(loop.scheduler):
        if step == at:
            assert loop.scheduler.preempt_youngest()
        outputs += [out for out in loop.step() if out.request_id == 1]
        step += 1
    assert [one.token for one in told(outputs)] == PROMPT[1:]


def test_a_prompt_of_one_token_has_none() -> None:
    params = SamplingParams(max_tokens=2, prompt_logprobs=1)
    assert told(run(make_loop(engine(), NullDrafter()), [request(0, [3], params)])[0]) == []
