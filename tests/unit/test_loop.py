"""The whole step over a scripted target: lossless, exact counts, ends in the right place."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sssd.config import SamplingParams
from sssd.drafting.base import NullDrafter
from sssd.engines.scripted import ScriptedEngine
from sssd.errors import RequestError
from tests.helpers.scripts import (
    VOCAB,
    GarbageTrees,
    Oracle,
    fixed_answer,
    make_loop,
    random_script,
    request,
    run,
    tokens_of,
)


def engine(**options) -> ScriptedEngine:
    return ScriptedEngine(random_script(), vocab_size=VOCAB, **options)


def jobs(seed: int, params: dict, *, max_draft: int = 7):
    rng = np.random.default_rng(seed)
    return [
        request(
            i,
            rng.integers(0, VOCAB, int(rng.integers(1, 17))).tolist(),
            SamplingParams(max_tokens=int(rng.integers(1, 40)), seed=seed * 100 + i, **params),
            max_draft=max_draft,
            eos_ids=(0,),
        )
        for i in range(7)
    ]


MODES = [
    {},
    {"temperature": 0.8},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 8, "min_p": 0.01},
    {"repetition_penalty": 1.4, "presence_penalty": 0.3, "frequency_penalty": 0.5},
    {"temperature": 1.0, "logit_bias": ((3, 2.0),), "ignore_eos": True},
]


@pytest.mark.parametrize("params", MODES)
@pytest.mark.parametrize("seed", range(4))
def test_output_is_the_same_with_any_drafts_slots_and_chunks(seed: int, params: dict) -> None:
    plain = tokens_of(run(make_loop(engine(), NullDrafter(), n_slots=1), jobs(seed, params)))
    for n_slots, chunk, min_width in ((3, 5, 1), (4, 64, 2), (2, 1, 9)):
        loop = make_loop(engine(), GarbageTrees(seed), n_slots=n_slots, chunk=chunk, min_width=min_width)
        assert tokens_of(run(loop, jobs(seed, params))) == plain
        assert loop.drafter.history == {}
    full = {r.id: r.tokens[: r.prompt_len].tolist() + plain[r.id] for r in jobs(seed, params)}
    for decoys in (False, True):
        loop = make_loop(engine(), Oracle(full, decoys=decoys), n_slots=3, chunk=7)
        assert tokens_of(run(loop, jobs(seed, params))) == plain


@pytest.mark.parametrize("noise", [0.3, None])
@pytest.mark.parametrize("params", MODES)
def test_output_is_the_same_where_branches_are_off_by_noise(params: dict, noise: float | None) -> None:
    for seed in range(4):
        plain = tokens_of(run(make_loop(engine(), NullDrafter(), n_slots=1), jobs(seed, params)))
        full = {r.id: r.tokens[: r.prompt_len].tolist() + plain[r.id] for r in jobs(seed, params)}
        for drafter in (GarbageTrees(seed), Oracle(full, decoys=True)):
            loop = make_loop(engine(branch_noise=noise), drafter, n_slots=3, chunk=20, branch_noise=noise)
            assert tokens_of(run(loop, jobs(seed, params, max_draft=12))) == plain


def test_a_branch_that_is_sure_is_accepted_and_read_again_as_forced_columns() -> None:
    answer = [10, 11, 12, 13, 14, 15, 16, 17]
    scripted = ScriptedEngine(fixed_answer(answer, 2), vocab_size=VOCAB, branch_noise=0.1)
    loop = make_loop(scripted, Oracle({0: [1, 2, *answer]}, decoys=True), branch_noise=0.1)
    outputs = run(loop, [request(0, [1, 2], SamplingParams(max_tokens=8), max_draft=6)])[0]
    assert [o.tokens for o in outputs[:2]] == [(10, 11, 12, 13), (14, 15)]
    assert scripted.widths[:2] == [2 + 6, 4 + 2], "the three accepted behind the branch and the last token are forced"


@pytest.mark.parametrize("budget", [0, 1, 3, 7])
@pytest.mark.parametrize("n", [1, 2, 8, 9, 33])
def test_with_an_oracle_the_calls_are_what_arithmetic_says(budget: int, n: int) -> None:
    prompt = list(range(18))
    plain = tokens_of(run(make_loop(engine(), NullDrafter()), [request(0, prompt, SamplingParams(max_tokens=n))]))
    scripted = engine()
    oracle = Oracle({0: prompt + plain[0]})
    one = request(0, prompt, SamplingParams(max_tokens=n), max_draft=budget)
    outputs = run(make_loop(scripted, oracle, chunk=8), [one])[0]
    reads = 2  # 18 prompt tokens in chunks of eight; the rest of two emits tokens already
    decodes = -(-n // (budget + 1)) if budget < 7 else 1 + -(-max(0, n - 7) // 8)  # 2 + 7 columns exceed a chunk
    assert scripted.n_forwards == reads + decodes
    assert sum(sum(o.n_accepted) for o in outputs) == n - decodes
    assert sum(sum(o.n_drafted) for o in outputs) == n - decodes, "a draft beyond the end is lost work"


@pytest.mark.parametrize("at", range(8))
def test_a_stop_token_inside_an_accepted_run_ends_the_output_there(at: int) -> None:
    answer = [10, 11, 12, 13, 14, 15, 16, 17]
    scripted = ScriptedEngine(fixed_answer(answer, 3), vocab_size=VOCAB)
    params = SamplingParams(max_tokens=20, stop_ids=(answer[at],))
    outputs = run(make_loop(scripted, Oracle({0: [1, 2, 3, *answer]})), [request(0, [1, 2, 3], params)])[0]
    assert [t for o in outputs for t in o.tokens] == answer[: at + 1]
    assert outputs[-1].finish == "stop"


@pytest.mark.parametrize(("limit", "finish", "n"), [(5, "stop", 3), (3, "stop", 3), (2, "length", 2)])
def test_the_earliest_end_in_token_order_wins(limit: int, finish: str, n: int) -> None:
    answer = [10, 11, 9, 20, 21, 22]
    scripted = ScriptedEngine(fixed_answer(answer, 2), vocab_size=VOCAB)
    params = SamplingParams(max_tokens=limit, stop_ids=(9,))
    outputs = run(make_loop(scripted, Oracle({0: [1, 2, *answer]})), [request(0, [1, 2], params)])[0]
    assert [t for o in outputs for t in o.tokens] == answer[:n]
    assert outputs[-1].finish == finish


def test_ignore_eos_goes_on_past_the_models_ending_token() -> None:
    def finish(**params) -> tuple[int, str | None]:
        scripted = ScriptedEngine(fixed_answer([4, 0, 5, 6], 1), vocab_size=VOCAB)
        one = request(0, [1], SamplingParams(max_tokens=4, **params), eos_ids=(0,))
        outputs = run(make_loop(scripted, NullDrafter()), [one])[0]
        return sum(len(o.tokens) for o in outputs), outputs[-1].finish

    assert finish() == (2, "stop")
    assert finish(ignore_eos=True) == (4, "length")


def test_min_tokens_holds_the_end_back_to_the_exact_token() -> None:
    def script(context: np.ndarray) -> np.ndarray:
        scores = np.zeros(VOCAB, np.float32)
        scores[[0, 5]] = 9, 8  # always wants to end
        return scores

    for drafter in (NullDrafter(), Oracle({0: [1, 2] + [5] * 30})):
        scripted = ScriptedEngine(script, vocab_size=VOCAB)
        params = SamplingParams(max_tokens=30, min_tokens=10)
        outputs = run(make_loop(scripted, drafter), [request(0, [1, 2], params, eos_ids=(0,))])[0]
        assert [t for o in outputs for t in o.tokens] == [5] * 10 + [0]


def test_logprobs_come_from_the_row_that_predicted_the_token() -> None:
    params = SamplingParams(max_tokens=12, logprobs=2)
    plain = run(make_loop(engine(), NullDrafter()), [request(0, [1, 2], params)])[0]
    answer = [t for o in plain for t in o.tokens]
    fast = run(make_loop(engine(), Oracle({0: [1, 2, *answer]})), [request(0, [1, 2], params)])[0]
    assert len(fast) < len(plain)
    logprobs = [lp for o in fast for lp in o.logprobs]
    assert logprobs == [lp for o in plain for lp in o.logprobs]
    assert [lp.token for lp in logprobs] == answer
    assert all(lp.top[0] == (lp.token, lp.logprob) for lp in logprobs)


def test_only_real_drafts_are_counted() -> None:
    loop = make_loop(engine(), NullDrafter(), min_width=8)
    outputs = run(loop, [request(0, [1], SamplingParams(max_tokens=5))])[0]
    assert all(sum(o.n_drafted) == 0 for o in outputs)
    assert set(loop.engine.widths) == {8}


def test_cancelling_leaves_bystanders_alone_and_nothing_behind() -> None:
    params = {"temperature": 0.9}
    alone = tokens_of(run(make_loop(engine(), NullDrafter(), n_slots=1), jobs(3, params)))
    for step in range(12):
        loop = make_loop(engine(), GarbageTrees(1), n_slots=3, chunk=4)
        requests = jobs(3, params)
        got: dict[int, list[int]] = {r.id: [] for r in requests}
        for r in requests:
            loop.add(r)
        n = 0
        while len(loop.scheduler):
            if n == step:
                for victim in (0, 2, 6):
                    loop.cancel(victim)
                if not len(loop.scheduler):
                    break
            for out in loop.step():
                got[out.request_id] += out.tokens
            assert loop.scheduler.check() == []
            n += 1
        assert loop.drafter.history == {}
        for i in (1, 3, 4, 5):
            assert got[i] == alone[i]


def test_an_id_in_use_is_refused_and_the_first_request_goes_on() -> None:
    loop = make_loop(engine(), GarbageTrees(0))
    loop.add(request(4, [1, 2], SamplingParams(max_tokens=3)))
    with pytest.raises(RequestError, match="in use"):
        loop.add(request(4, [1], SamplingParams(max_tokens=3)))
    assert len(loop.scheduler) == 1
    assert list(loop.drafter.history) == [4]


def test_a_failed_forward_ends_its_request_with_the_engines_words() -> None:
    loop = make_loop(engine(fails_at=frozenset({1})), NullDrafter())
    loop.add(request(0, [1, 2], SamplingParams(max_tokens=3)))
    loop.step()
    (out,) = loop.step()
    assert (out.finish, out.error) == ("error", "scripted failure of forward 1")


@pytest.mark.parametrize(
    ("prompt", "says"),
    [([], "empty"), ([VOCAB], "token id"), ([-1], "token id"), ([1] * 250, "exceed the bundle's 256")],
)
def test_a_prompt_that_does_not_fit_is_refused(prompt: list[int], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        request(0, prompt, SamplingParams(max_tokens=10))


def test_a_running_request_waits_for_one_chunk_at_most() -> None:
    loop = make_loop(engine(), NullDrafter(), n_slots=2, chunk=4)
    loop.add(request(0, [1, 2], SamplingParams(max_tokens=30, ignore_eos=True)))
    loop.step()
    loop.add(request(1, [3] * 40, SamplingParams(max_tokens=5)))
    emitted = [bool(out.tokens and out.request_id == 0) for _ in range(16) for out in loop.step()]
    assert all(a or b for a, b in itertools.pairwise(emitted))


@pytest.mark.parametrize("period", range(1, 6))
def test_periodic_prompts_whose_drafts_overlap_their_own_suffix_change_nothing(period: int) -> None:
    from sssd.drafting.simple import MaxGram, PromptLookup

    prompt = (list(range(1, period + 1)) * 48)[:96]
    params = SamplingParams(max_tokens=40)
    plain = tokens_of(run(make_loop(engine(), NullDrafter()), [request(0, prompt, params)]))
    for drafter in (MaxGram(), PromptLookup()):
        assert tokens_of(run(make_loop(engine(), drafter), [request(0, prompt, params)])) == plain
        assert drafter.check() == []
