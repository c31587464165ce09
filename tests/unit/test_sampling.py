from __future__ import annotations

import numpy as np
import pytest

from sssd.config import SamplingParams
from sssd.errors import RequestError
from sssd.sampling import gumbel, make_choose, needs_scores, token_logprob
from sssd.types import NodeScores

V = 40
NONE = np.zeros(0, np.int32)


def node(scores: np.ndarray) -> NodeScores:
    return NodeScores(int(scores.argmax()), None, scores.astype(np.float32), None)


def top_node(scores: np.ndarray, k: int) -> NodeScores:
    """The same scores as an engine that keeps the k best would give them."""
    ids = np.argsort(-scores, kind="stable")[:k]
    lse = float(np.log(np.exp(scores.astype(np.float64)).sum()))
    return NodeScores(int(ids[0]), ids, scores[ids].astype(np.float32), lse)


def chooser(params: SamplingParams, *, prompt=NONE, output=NONE, ending=(), seed=None):
    return make_choose(
        params,
        seed=params.seed or 0 if seed is None else seed,
        prompt=np.array(prompt, np.int32),
        output=np.array(output, np.int32),
        ending_ids=ending,
    )


def frequencies(params: SamplingParams, scores: np.ndarray, n: int = 20_000) -> np.ndarray:
    choose = chooser(params, seed=5)
    return np.bincount([choose(node(scores), position, [], 0.0) for position in range(n)], minlength=len(scores)) / n


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def close(observed: np.ndarray, expected: np.ndarray, n: int = 20_000) -> bool:
    """Within five standard errors everywhere, and exactly never where the expectation is zero."""
    error = np.sqrt(expected * (1 - expected) / n)
    return bool((np.abs(observed - expected) <= 5 * error + 1e-12).all())


@pytest.fixture
def scores() -> np.ndarray:
    return np.random.default_rng(3).normal(size=V) * 2


def test_greedy_takes_the_engine_argmax_and_needs_no_scores(scores: np.ndarray) -> None:
    assert not needs_scores(SamplingParams())
    assert chooser(SamplingParams())(NodeScores(7, None, None, None), 0, [], 0.0) == 7


@pytest.mark.parametrize(
    "changed",
    [{"temperature": 1.0}, {"logprobs": 0}, {"min_tokens": 1}, {"logit_bias": ((1, 1.0),)}, {"presence_penalty": 0.1}],
)
def test_every_other_option_asks_for_scores(changed: dict) -> None:
    assert needs_scores(SamplingParams(**changed))


def test_sampling_follows_the_softmax_at_its_temperature(scores: np.ndarray) -> None:
    assert close(frequencies(SamplingParams(temperature=1.0), scores), softmax(scores))
    assert close(frequencies(SamplingParams(temperature=0.5), scores), softmax(scores / 0.5))
    assert not close(frequencies(SamplingParams(temperature=0.5), scores), softmax(scores))


def test_top_k_leaves_the_k_best(scores: np.ndarray) -> None:
    best = np.argsort(-scores)[:5]
    expected = np.zeros(V)
    expected[best] = softmax(scores[best])
    assert close(frequencies(SamplingParams(temperature=1.0, top_k=5), scores), expected)


def test_top_p_leaves_the_smallest_set_that_holds_p(scores: np.ndarray) -> None:
    p = softmax(scores)
    order = np.argsort(-p)
    n = int(np.searchsorted(np.cumsum(p[order]), 0.7)) + 1
    expected = np.zeros(V)
    expected[order[:n]] = p[order[:n]] / p[order[:n]].sum()
    assert close(frequencies(SamplingParams(temperature=1.0, top_p=0.7), scores), expected)


def test_min_p_leaves_what_is_near_the_best(scores: np.ndarray) -> None:
    p = softmax(scores)
    kept = np.where(p >= 0.2 * p.max(), p, 0)
    assert close(frequencies(SamplingParams(temperature=1.0, min_p=0.2), scores), kept / kept.sum())


def test_ties_at_the_edge_of_top_k_keep_exactly_k() -> None:
    seen = frequencies(SamplingParams(temperature=1.0, top_k=3), np.zeros(V), 2000)
    assert np.flatnonzero(seen).tolist() == [0, 1, 2]


def test_kept_scores_of_an_engine_give_the_same_draw_as_all_scores(scores: np.ndarray) -> None:
    for params in (SamplingParams(temperature=0.8, top_k=4), SamplingParams(temperature=0.8, top_k=9, top_p=0.9)):
        choose = chooser(params, seed=9)
        for position in range(300):
            assert choose(node(scores), position, [], 0.0) == choose(top_node(scores, 16), position, [], 0.0)


def test_a_draw_depends_on_seed_and_position_only(scores: np.ndarray) -> None:
    params = SamplingParams(temperature=1.0)
    a, b, other = (chooser(params, seed=s) for s in (1, 1, 2))
    first = [a(node(scores), i, [], 0.0) for i in range(200)]
    assert [b(node(scores), i, [4, 4], 0.0) for i in reversed(range(200))][::-1] == first
    assert [other(node(scores), i, [], 0.0) for i in range(200)] != first


def test_noise_is_gumbel() -> None:
    x = gumbel(3, 4, np.arange(200_000))
    assert x.mean() == pytest.approx(0.5772, abs=0.01)
    assert x.var() == pytest.approx(np.pi**2 / 6, abs=0.03)
    assert np.unique(x).size == x.size
    assert abs(np.corrcoef(x, gumbel(3, 5, np.arange(200_000)))[0, 1]) < 0.01


def slow_penalties(scores: np.ndarray, p: SamplingParams, prompt: list[int], output: list[int]) -> np.ndarray:
    out = scores.astype(np.float32).copy()
    for t in set(prompt) | set(output):
        out[t] = out[t] / np.float32(p.repetition_penalty) if out[t] > 0 else out[t] * np.float32(p.repetition_penalty)
    for t in set(output):
        out[t] -= np.float32(p.presence_penalty + p.frequency_penalty * output.count(t))
    return out


def test_penalties_count_committed_tokens_and_the_path_before_the_node() -> None:
    rng = np.random.default_rng(0)
    p = SamplingParams(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3)
    for _ in range(200):
        scores = rng.normal(size=V)
        prompt, output, emitted = (rng.integers(0, V, n).tolist() for n in (4, 5, 3))
        choose = chooser(p, prompt=prompt, output=output)
        expected = slow_penalties(scores, p, prompt, output + emitted)
        assert choose(node(scores), 12, emitted, 0.0) == int(expected.argmax())
        assert choose(top_node(scores, V), 12, emitted, 0.0) == int(expected.argmax())


def test_logit_bias_lifts_and_sinks(scores: np.ndarray) -> None:
    best = int(scores.argmax())
    assert chooser(SamplingParams(logit_bias=((2, 50.0),)))(node(scores), 0, [], 0.0) == 2
    assert chooser(SamplingParams(logit_bias=((best, -100.0),)))(node(scores), 0, [], 0.0) != best


def test_min_tokens_bans_ending_tokens_until_that_many_are_out() -> None:
    scores = np.zeros(V)
    scores[[3, 7]] = 5, 4
    choose = chooser(SamplingParams(min_tokens=4), prompt=[1, 1], ending=(3,))
    assert [choose(node(scores), 2 + i, [], 0.0) for i in range(6)] == [7, 7, 7, 7, 3, 3]


def test_choosing_does_not_change_the_scores(scores: np.ndarray) -> None:
    given = scores.astype(np.float32)
    before = given.copy()
    params = SamplingParams(temperature=0.7, top_p=0.9, repetition_penalty=2.0, logit_bias=((0, 5.0),))
    chooser(params, output=[1, 2])(NodeScores(0, None, given, None), 3, [4], 0.0)
    assert (given == before).all()


def test_logprobs_are_the_models_own(scores: np.ndarray) -> None:
    logp = np.log(softmax(scores))
    got = token_logprob(node(scores), 11, 3)
    best = np.argsort(-scores)[:3]
    assert got.logprob == pytest.approx(logp[11], abs=1e-5)
    assert [t for t, _ in got.top] == best.tolist()
    assert [x for _, x in got.top] == pytest.approx(logp[best].tolist(), abs=1e-5)
    kept = token_logprob(top_node(scores, 5), int(best[1]), 3)
    assert kept.logprob == pytest.approx(logp[best[1]], abs=1e-5)
    assert [t for t, _ in kept.top] == best.tolist()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(repetition_penalty=1.5, frequency_penalty=0.2),
        SamplingParams(temperature=0.8, seed=3),
        SamplingParams(temperature=0.8, top_p=0.9, seed=3),
        SamplingParams(temperature=1.2, top_k=6, min_p=0.05, seed=3),
    ],
)
def test_a_choice_that_noise_could_change_is_none_and_any_other_withstands_it(params: SamplingParams) -> None:
    rng = np.random.default_rng(0)
    noise, unsure, changed_when_sure, changed = 0.05, 0, 0, 0
    for position in range(1500):
        scores = rng.normal(size=V) * 2
        off = scores + rng.choice([-1, 1], V) * noise
        choose = chooser(params, prompt=[1, 2], output=[3, 3])
        exact = choose(node(scores), position, [4], 0.0)
        guarded = choose(node(off), position, [4], noise)
        unsure += guarded is None
        changed += choose(node(off), position, [4], 0.0) != exact
        changed_when_sure += guarded is not None and guarded != exact
    assert changed_when_sure == 0
    assert changed > 0, "the noise is too small to test anything"
    assert unsure < 750, "the guard refuses nearly everything"


def test_greedy_withstands_noise_by_its_lead() -> None:
    scores = np.zeros(V)
    scores[[3, 7]] = 5, 4.9
    choose = chooser(SamplingParams())
    assert choose(node(scores), 0, [], 0.04) == 3
    assert choose(node(scores), 0, [], 0.06) is None
    assert choose(NodeScores(3, None, None, None), 0, [], 0.04) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", 1.0),
        ("max_tokens", 0),
        ("min_tokens", 300),
        ("seed", -1),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 3.0),
        ("frequency_penalty", -2.5),
        ("logprobs", 21),
        ("stop", ("",)),
        ("logit_bias", ((1, 101.0),)),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"{field} is .*allowed is"):
        SamplingParams(**{field: value})
