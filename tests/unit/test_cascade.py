"""Cascades of draft models: equal to the plain recursion, as few calls as can be, never in the way of the output."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from sssd.config import CASCADE_PRESETS, CascadeConfig, SamplingParams, cascade_config
from sssd.drafting.base import NullDrafter
from sssd.drafting.reference_cascade import PlainCascade
from sssd.drafting.retrieval import Retrieval
from sssd.drafting.simple import MaxGram, PromptLookup
from sssd.engines.scripted import ScriptedEngine
from sssd.errors import RequestError, SssdError
from sssd.tree import faults, is_chain
from sssd.types import DraftJob, DraftOptions, Source, empty_tree
from tests.helpers.cascades import AheadOracle, cascade, close_to, probabilities, random_k, slow_max_gram
from tests.helpers.scripts import VOCAB, fixed_answer, make_loop, random_script, request, run, tokens_of

TARGET = random_script(order=3)
BASE = close_to(TARGET, random_script(order=2), 0.7)
SMALL = close_to(TARGET, random_script(order=1), 0.5)


# ---- the batched recursion against the plain one -------------------------------------------------


@pytest.mark.parametrize("budget", [64, 9, 1])
@pytest.mark.parametrize("config", [*CASCADE_PRESETS.values(), *range(6)])
def test_proposals_and_reviews_are_those_of_the_plain_recursion(config, budget: int) -> None:
    rng = np.random.default_rng(budget if isinstance(config, CascadeConfig) else config)
    if not isinstance(config, CascadeConfig):
        n = 1 + config % 3
        config = CascadeConfig(random_k(rng, n), lenience=float(rng.choice([1, 1.5, 4])))
    config = CascadeConfig(config.k, lenience=config.lenience, adaptive=False)
    scripts = [BASE, SMALL, random_script(order=2)][: config.n_levels]
    fast = cascade(scripts, MaxGram(), config)
    plain = PlainCascade([probabilities(s) for s in scripts], slow_max_gram, config)
    texts = {i: rng.integers(0, VOCAB // 3, int(rng.integers(1, 30))).tolist() for i in range(3)}
    for i, text in texts.items():
        fast.begin(i, np.array(text, np.int32), DraftOptions())
    for _ in range(6):
        rows = [i for i in texts if rng.random() < 0.8] or [0]
        trees = fast.propose([DraftJob(i, budget) for i in rows])
        for i, found in zip(rows, trees, strict=True):
            assert is_chain(found)
            assert faults(found, budget) == []
            guesses = plain.draft(texts[i], budget)
            assert found.tokens.tolist() == guesses
            committed = [*guesses[: int(rng.integers(0, len(guesses) + 1))], int(rng.integers(VOCAB))]
            fast.accept(i, np.array(committed, np.int32), found)
            texts[i] += committed
        assert [costs.reviews for costs in fast.costs()] == plain.reviews
        assert fast.check() == []


def test_a_row_alone_gets_what_it_gets_among_others() -> None:
    config = CascadeConfig(((3, 4, 5), (2, 4), (4,)), lenience=2, adaptive=False)
    texts = [np.random.default_rng(i).integers(0, 7, 5 + 9 * i).astype(np.int32) for i in range(4)]
    together = cascade([BASE, SMALL], MaxGram(), config)
    for i, text in enumerate(texts):
        together.begin(i, text, DraftOptions())
    trees = together.propose([DraftJob(i, 20) for i in range(4)])
    for i, text in enumerate(texts):
        alone = cascade([BASE, SMALL], MaxGram(), config)
        alone.begin(i, text, DraftOptions())
        (found,) = alone.propose([DraftJob(i, 20)])
        assert found.tokens.tolist() == trees[i].tokens.tolist()
        assert found.scores == pytest.approx(trees[i].scores)


# ---- calls ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [((5, 10), (10,)), ((13, 10), (10,)), ((5, 14, 10), (1, 10), (10,)), ((40, 1), (3,))])
def test_over_an_oracle_every_level_makes_as_few_calls_as_can_be(k) -> None:
    prompt, n = [1, 2, 3], 97
    answer = np.random.default_rng(0).integers(1, VOCAB, n).tolist()
    script = fixed_answer(answer, len(prompt))
    config = CascadeConfig(k, adaptive=False)
    drafter = cascade([script] * config.n_levels, AheadOracle({0: prompt + answer}), config)
    target = ScriptedEngine(script, vocab_size=VOCAB)
    run(make_loop(target, drafter), [request(0, prompt, SamplingParams(max_tokens=n), max_draft=31)])
    calls = 0
    reviews = [0] * config.n_levels
    left = n
    while left:
        calls += 1
        left -= _perfect(k, min(31, left - 1), 0, reviews) + 1
    assert target.n_forwards == calls
    assert [costs.reviews for costs in drafter.costs()] == reviews
    # a review of d tokens yields d + 1: no level can give its positions with fewer calls
    assert reviews[-1] >= -(-min(k[0][config.n_levels - 1], 31) // (k[-1][0] + 1))


def _perfect(k, room: int, first: int, reviews: list[int]) -> int:
    """Tokens of a draft when everybody is right; counts each level's reviews."""
    length = upto = 0
    for member, positions in enumerate(k[first], first):
        upto += positions
        while length < min(upto, room):
            if member == len(reviews):
                length += min(positions, room - length)
            else:
                reviews[member] += 1
                length += _perfect(k, room - length - 1, member + 1, reviews) + 1
    return length


def test_a_draft_model_alone_is_plain_speculative_decoding() -> None:
    prompt = [1, 2, 3]
    config = CascadeConfig(((4, 1), (1,)), adaptive=False)
    drafter = cascade([TARGET], NullDrafter(), config)
    target = ScriptedEngine(TARGET, vocab_size=VOCAB)
    run(make_loop(target, drafter), [request(0, prompt, SamplingParams(max_tokens=50))])
    assert target.n_forwards == 10
    assert drafter.costs()[0].reviews == 40


def test_what_is_rejected_is_not_computed_again_where_it_still_holds() -> None:
    engine = ScriptedEngine(TARGET, vocab_size=VOCAB, n_slots=2)
    config = CascadeConfig(((2, 3), (3,)), adaptive=False)
    from sssd.drafting.cascade import Cascade
    from sssd.drafting.level import Level

    drafter = Cascade([Level("draft", engine)], MaxGram(), config)
    drafter.begin(0, np.arange(15, dtype=np.int32), DraftOptions())
    (tree,) = drafter.propose([DraftJob(0, 4)])
    before = list(engine.widths)
    drafter.accept(0, np.array([tree.tokens[0], tree.tokens[1], VOCAB - 1], np.int32), tree)
    drafter.propose([DraftJob(0, 4)])
    added = engine.widths[len(before) :]
    assert sum(before[:1]) >= 15
    assert max(added) <= 3 + 3, "the last tokens and a draft of three, not the prompt again"


# ---- lossless -----------------------------------------------------------------------------------------

MODES = [{}, {"temperature": 0.9}, {"temperature": 0.8, "top_p": 0.9, "min_tokens": 3}, {"repetition_penalty": 1.3}]


def jobs(seed: int, params: dict, *, max_draft: int = 12):
    rng = np.random.default_rng(seed)
    return [
        request(
            i,
            rng.integers(0, 9, int(rng.integers(1, 40))).tolist(),
            SamplingParams(max_tokens=int(rng.integers(3, 30)), seed=seed * 100 + i, **params),
            max_draft=max_draft,
            eos_ids=(0,),
        )
        for i in range(5)
    ]


@pytest.mark.parametrize("noise", [0.0, 0.3, None])
@pytest.mark.parametrize("params", MODES)
def test_output_is_the_same_with_any_stack(params: dict, noise: float | None) -> None:
    def engine() -> ScriptedEngine:
        return ScriptedEngine(TARGET, vocab_size=VOCAB, branch_noise=noise)

    for seed in range(2):
        rng = np.random.default_rng(seed)
        plain = tokens_of(run(make_loop(engine(), NullDrafter(), n_slots=1), jobs(seed, params)))
        for below, children in ((MaxGram(), 1), (Retrieval(), 3), (NullDrafter(), 2), (PromptLookup(), 4)):
            n = int(rng.integers(1, 4))
            config = CascadeConfig(
                random_k(rng, n), lenience=float(rng.choice([1, 3])), children=children, adaptive=seed % 2 == 0
            )
            drafter = cascade([BASE, SMALL, TARGET][-n:], below, config, n_slots=int(rng.integers(1, 5)))
            loop = make_loop(engine(), drafter, n_slots=3, chunk=20, branch_noise=noise)
            assert tokens_of(run(loop, jobs(seed, params))) == plain
            assert drafter.check() == []
            assert loop.n_drafter_failures == 0


def test_cancelling_in_the_middle_leaves_the_others_alone() -> None:
    plain = tokens_of(run(make_loop(ScriptedEngine(TARGET, vocab_size=VOCAB), NullDrafter()), jobs(7, {})))
    config = CascadeConfig(((3, 4), (4,)), adaptive=False)
    drafter = cascade([BASE], MaxGram(), config, n_slots=2)
    loop = make_loop(ScriptedEngine(TARGET, vocab_size=VOCAB), drafter, n_slots=3)
    got: dict[int, list[int]] = {r.id: [] for r in jobs(7, {})}
    for r in jobs(7, {}):
        loop.add(r)
    steps = 0
    while len(loop.scheduler):
        if steps == 3:
            loop.cancel(1)
        for out in loop.step():
            got[out.request_id] += out.tokens
        steps += 1
        assert drafter.check() == []
    assert {i: t for i, t in got.items() if i != 1} == {i: t for i, t in plain.items() if i != 1}


@pytest.mark.parametrize("at", [0, 3, 9])
def test_a_level_that_fails_goes_off_with_a_reason_and_the_output_stays(at: int, caplog) -> None:
    plain = tokens_of(run(make_loop(ScriptedEngine(TARGET, vocab_size=VOCAB), NullDrafter()), jobs(3, {})))
    config = CascadeConfig(((3, 4, 4), (2, 4), (4,)), adaptive=at == 9)
    drafter = cascade([BASE, SMALL], MaxGram(), config, fails_at=frozenset(range(at, 1000)))
    with caplog.at_level(logging.WARNING, "sssd.cascade"):
        loop = make_loop(ScriptedEngine(TARGET, vocab_size=VOCAB), drafter)
        assert tokens_of(run(loop, jobs(3, {}))) == plain
    assert loop.n_drafter_failures == 0
    assert caplog.messages
    assert all("left out from now on: scripted failure" in message for message in caplog.messages)
    assert len(caplog.messages) <= 2, "once a level"


# ---- sampling -------------------------------------------------------------------------------------------


def test_a_draft_model_equal_to_the_target_agrees_with_every_draw() -> None:
    params = SamplingParams(max_tokens=60, temperature=1.2, seed=5)
    config = CascadeConfig(((5, 1), (1,)), adaptive=False)
    target = ScriptedEngine(TARGET, vocab_size=VOCAB)
    run(make_loop(target, cascade([TARGET], NullDrafter(), config)), [request(0, [1, 2], params)])
    assert target.n_forwards == 10


# ---- trees ----------------------------------------------------------------------------------------------


def test_several_children_make_a_tree_that_holds_the_bottom_drafters_own() -> None:
    text = np.array([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], np.int32)
    chain = cascade([BASE], Retrieval(), CascadeConfig(((3, 2), (2,)), adaptive=False))
    broad = cascade([BASE], Retrieval(), CascadeConfig(((3, 2), (2,)), children=3, adaptive=False))
    for drafter in (chain, broad):
        drafter.begin(0, text, DraftOptions())
    (path,) = chain.propose([DraftJob(0, 16)])
    (found,) = broad.propose([DraftJob(0, 16)])
    assert is_chain(path)
    assert not is_chain(found)
    assert faults(found, 16) == []
    at_root = found.tokens[found.parents == -1].tolist()
    assert {4, 5} <= set(at_root), "what followed before"
    assert path.tokens[0] in at_root


def test_scores_come_to_mean_how_often_drafts_are_right() -> None:
    target = ScriptedEngine(TARGET, vocab_size=VOCAB)
    drafter = cascade([BASE], NullDrafter(), CascadeConfig(((1, 1), (1,)), adaptive=False))
    loop = make_loop(target, drafter)
    promised: list[float] = []
    propose = drafter.propose

    def watched(asked):
        trees = propose(asked)
        promised.extend(float(t.scores[0]) for t in trees if len(t))
        return trees

    drafter.propose = watched
    outputs = run(loop, [request(i, [i, 1], SamplingParams(max_tokens=200)) for i in range(4)])
    accepted = sum(sum(o.n_accepted) for outs in outputs.values() for o in outs)
    late = promised[len(promised) // 2 :]
    assert sum(late) / len(late) == pytest.approx(accepted / len(promised), abs=0.06)


# ---- what a user can get wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "k", "says"),
    [
        (1, "5,10;10;1", "entries"),
        (1, "5,0;10", "1 or more everywhere"),
        (1, "5,-2;10", "1 or more everywhere"),
        (2, "5,10;10", "for 1 draft models and there are 2"),
        (1, "5;x", "rows of numbers"),
        (1, "mmlu", "for 2 draft models"),
        (4, None, "no usual K for 4"),
    ],
)
def test_a_k_that_does_not_fit_is_refused(n: int, k: str | None, says: str) -> None:
    with pytest.raises(SssdError, match=says):
        cascade_config(n, k=k)


def test_lenience_below_one_is_refused() -> None:
    with pytest.raises(SssdError, match=r"lenience is 0\.5: allowed is 1 or more"):
        cascade_config(1, lenience=0.5)


def test_presets_are_the_published_settings() -> None:
    assert cascade_config(2).k == ((5, 14, 10), (1, 10), (10,))
    assert cascade_config(2, k="5,8,10;1,10;10", lenience=5) == CASCADE_PRESETS["mmlu-cheap"]
    assert cascade_config(1, k="llama").lenience == 3
    assert cascade_config(1, k="llama", lenience=1).lenience == 1


def test_an_id_in_use_is_refused() -> None:
    drafter = cascade([BASE], MaxGram(), CascadeConfig(((3, 4), (4,))))
    drafter.begin(0, np.array([1], np.int32), DraftOptions())
    with pytest.raises(RequestError, match="in use"):
        drafter.begin(0, np.array([1], np.int32), DraftOptions())
    assert drafter.propose([DraftJob(0, 0)])[0].tokens.tolist() == empty_tree().tokens.tolist()


def test_a_text_that_a_level_has_no_room_for_is_drafted_below_it() -> None:
    drafter = cascade([BASE], MaxGram(), CascadeConfig(((3, 4), (4,)), adaptive=False), max_len=8)
    drafter.begin(0, np.array([1, 2, 3] * 4, np.int32), DraftOptions())
    (found,) = drafter.propose([DraftJob(0, 4)])
    assert found.tokens.tolist() == [1, 2, 3, 1]
    assert drafter.costs()[0].reviews == 0


def test_a_request_that_allows_no_models_is_drafted_below_them() -> None:
    drafter = cascade([BASE], MaxGram(), CascadeConfig(((3, 4), (4,)), adaptive=False))
    text = np.array([1, 2, 3] * 4, np.int32)
    drafter.begin(0, text, DraftOptions(sources=frozenset({Source.CONTEXT})))
    drafter.begin(1, text, DraftOptions())
    own, models = drafter.propose([DraftJob(0, 4), DraftJob(1, 4)])
    assert own.tokens.tolist() == [1, 2, 3, 1]
    assert set(own.source.tolist()) == {Source.CONTEXT}
    assert models.source[0] == Source.MODEL
