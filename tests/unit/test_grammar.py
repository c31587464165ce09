"""Constraints and their states: what is refused, masks that depend on tokens only, trees within the grammar."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("llguidance")  # brought by the extras structured and dev

from sssd import tree
from sssd.constraint import MAX_CHARS, MAX_DEPTH, MAX_MARKS, Constraint
from sssd.errors import MissingExtra, RequestError
from sssd.grammar import CACHED, Grammars, GrammarState
from sssd.types import DraftTree, Source, empty_tree
from tests.helpers.grammars import EOS, core, grammars, ids, random_constraint, text, vocab_size
from tests.helpers.scripts import GarbageTrees

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def walk(state: GrammarState, rng: np.random.Generator, n: int = 30) -> list[int]:
    """A random output that ends, or `n` tokens of one; the state stays where it is."""
    path: list[int] = []
    while len(path) < n:
        path.append(int(rng.choice(np.flatnonzero(state.allowed(path)))))
        if path[-1] in EOS:
            break
    return path


def random_tree(rng: np.random.Generator, state: GrammarState, size: int) -> DraftTree:
    """Nodes in any order of growth: allowed tokens, any tokens, ending tokens."""
    tokens: list[int] = []
    parents: list[int] = []
    paths: list[list[int]] = []
    for _ in range(size):
        parent = int(rng.integers(-1, len(tokens)))
        path = paths[parent] if parent >= 0 else []
        token = int(rng.integers(vocab_size()))
        if rng.random() < 0.7 and not set(path) & set(EOS) and follows(state, path):
            token = int(rng.choice(np.flatnonzero(state.allowed(path))))
        if (parent, token) not in zip(parents, tokens, strict=True):
            tokens.append(token)
            parents.append(parent)
            paths.append([*path, token])
    scores = np.cumprod(np.full(len(tokens), 0.9)).astype(np.float32)
    return DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32), scores, np.zeros(len(tokens), np.uint8))


def follows(state: GrammarState, path: list[int]) -> bool:
    """Whether every token of the path is in the mask at its place: the slow twin of `permits`."""
    return all(bool(state.allowed(path[:i])[path[i]]) for i in range(len(path)) if not set(path[:i]) & set(EOS))


def paths_of(t: DraftTree) -> list[list[int]]:
    paths: list[list[int]] = []
    for token, parent in zip(t.tokens.tolist(), t.parents.tolist(), strict=True):
        paths.append([*(paths[parent] if parent >= 0 else []), token])
    return paths


@pytest.mark.parametrize("seed", range(20))
def test_masks_depend_on_the_tokens_alone_whatever_was_asked_before(seed: int) -> None:
    rng = np.random.default_rng(seed)
    constraint = random_constraint(rng)
    asked, fresh = grammars().start(constraint), grammars().start(constraint)
    path = walk(grammars().start(constraint), rng)
    for i in range(len(path)):
        for _ in range(3):  # far ahead, back again, off the path, a whole tree
            asked.permits(path[: int(rng.integers(len(path)))], int(rng.integers(vocab_size())))
        asked.draft(random_tree(rng, grammars().start(constraint), 6), 9)
        here = asked.allowed(path[:i])
        assert np.array_equal(here, fresh.allowed(path[:i]))
        some = {*np.flatnonzero(here)[:50].tolist(), *rng.integers(0, vocab_size(), 50).tolist(), *EOS}
        assert [t for t in some if asked.permits(path[:i], t)] == [t for t in some if here[t]]
        if i % 3 == 2 and path[i] not in EOS:  # commit a few
            asked.advance(path[:i])
            fresh.advance(path[:i])
            path = path[i:]
            break
    assert asked.fault is None


@pytest.mark.parametrize("seed", range(30))
def test_a_draft_holds_what_the_masks_allow_and_nothing_else(seed: int) -> None:
    rng = np.random.default_rng(seed)
    constraint = random_constraint(rng)
    state, twin = grammars().start(constraint), grammars().start(constraint)
    path = [t for t in walk(twin, rng) if t not in EOS]
    done = path[: int(rng.integers(len(path) + 1))]
    state.advance(done)
    twin.advance(done)
    given = random_tree(rng, twin, 12)
    grown = state.draft(given, 100)
    assert tree.faults(grown, 100) == []
    wanted = [p for p in paths_of(given) if follows(twin, p) and not set(p[:-1]) & set(EOS)]
    got = [p for p, s in zip(paths_of(grown), grown.source.tolist(), strict=True) if s != Source.GRAMMAR]
    assert sorted(got) == sorted(wanted)
    for p, s in zip(paths_of(grown), grown.source.tolist(), strict=True):
        if s == Source.GRAMMAR:
            assert np.flatnonzero(twin.allowed(p[:-1])).tolist() == p[-1:], "a forced token is the only one allowed"
    assert len(state.draft(given, 3)) == min(3, len(grown))


def test_forced_tokens_are_drafted_without_any_drafter() -> None:
    state = grammars().start(Constraint.json_schema(PERSON))
    grown = state.draft(empty_tree(), 50)
    assert text(grown.tokens.tolist()) == '{"name": "'[: len(text(grown.tokens.tolist()))]
    assert len(grown) >= 2
    assert set(grown.source.tolist()) == {Source.GRAMMAR}
    assert tree.is_chain(grown)
    assert len(state.draft(empty_tree(), 1)) == 1


def test_it_may_end_where_the_text_is_complete_and_only_there() -> None:
    state = grammars().start(Constraint.json_schema(PERSON))
    done = ids('{"name": "yes", "age": 12}')
    for i in range(len(done)):
        assert not state.allowed(done[:i])[list(EOS)].any()
    assert np.flatnonzero(state.allowed(done)).tolist() == list(EOS)
    number = grammars().start(Constraint.regex("[0-9]+"))
    assert number.allowed(ids("1"))[list(EOS)].all()
    assert number.allowed(ids("1"))[ids("2")].all()


@pytest.mark.parametrize(
    ("constraint", "good", "bad"),
    [
        (Constraint.json_object(), '{"x1": [1, {"a": null}]}', "[1]"),
        (Constraint.json_schema('{"type": "array", "items": {"type": "boolean"}}'), "[true, false]", "[1"),
        (Constraint.choice(["a.b", "a|b", "[x]", "é {2}", "a/b-c&d~e#f"]), "a/b-c&d~e#f", "acb"),
        (Constraint.choice(["a.b", "a|b", "[x]", "é {2}"]), "é {2}", "a.bb"),
        (Constraint.choice(['say "\\n"', "\n/*"]), "\n/*", "n"),
        (Constraint.regex("a/b|[/]"), "/", "b"),
        (Constraint.regex("a\nb|\\d"), "a\nb", "nb"),
        (Constraint.regex(r"\d{3}-[a-z]+"), "123-abc", "12-"),
        (Constraint.lark('start: "(" start ")" | "x"'), "((x))", "(()"),
    ],
)
def test_each_kind_takes_its_texts_and_no_others(constraint: Constraint, good: str, bad: str) -> None:
    assert follows(grammars().start(constraint), [*ids(good), EOS[0]])
    assert not follows(grammars().start(constraint), [*ids(bad), EOS[0]])


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint.choice(["a<tool_call>b"]),
        Constraint.regex("a<tool_call>b"),
        Constraint.lark('start: "a<tool_call>b"'),
        Constraint.json_schema({"const": "<tool_call>"}),
    ],
)
def test_a_special_tokens_name_is_spelt_as_text(constraint: Constraint) -> None:
    state, path = grammars().start(constraint), list[int]()
    while not state.allowed(path)[EOS[0]]:
        path.append(int(np.flatnonzero(state.allowed(path))[0]))
    assert state.fault is None
    assert "<tool_call>" in text(path)
    assert 2 not in path, "the token of that name"


def test_equal_constraints_are_compiled_once_and_the_cache_is_bounded() -> None:
    own = Grammars(core().to_str(), vocab_size=vocab_size(), eos_ids=EOS)
    for _ in range(3):
        own.start(Constraint.json_schema(PERSON))
        own.start(Constraint.json_schema(json.dumps(PERSON)))
    assert own.n_compiled == 1
    for i in range(CACHED):
        own.start(Constraint.regex(f"a{{{i + 1}}}"))
    assert own.n_compiled == 1 + CACHED
    own.start(Constraint.json_schema(PERSON))
    assert own.n_compiled == 2 + CACHED, "the least recently used one has made room"


def test_compiling_on_other_threads_does_not_disturb_a_state() -> None:
    own = Grammars(core().to_str(), vocab_size=vocab_size(), eos_ids=EOS)
    wanted = Constraint.json_schema(PERSON)
    path = [t for t in walk(own.start(wanted), np.random.default_rng(0)) if t not in EOS]
    masks = [own.start(wanted).allowed(path[:i]) for i in range(len(path))]
    with ThreadPoolExecutor(4) as threads:
        others = [threads.submit(own.start, Constraint.regex(f"(yes|no{i % 20}){{1,9}}")) for i in range(80)]
        while not all(o.done() for o in others):
            state = own.start(wanted)
            assert all(np.array_equal(state.allowed(path[:i]), m) for i, m in enumerate(masks))
    assert all(o.result().fault is None for o in others)
    assert own.n_compiled == 21


def test_a_state_without_a_token_to_go_on_is_at_fault_and_harms_no_other() -> None:
    one, other = (grammars().start(Constraint.regex("abc")) for _ in range(2))
    one.advance(ids("x"))
    assert one.fault is not None
    assert "does not allow" in one.fault
    assert one.allowed(()).all(), "its tokens are thrown away: nothing more is asked of it"
    assert one.draft(empty_tree(), 5) is not None
    assert other.fault is None
    assert other.permits((), ids("abc")[0])


def deep(n: int) -> str:
    return '{"items":' * n + "{}" + "}" * n


def chained(n: int) -> dict:
    links = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(n)}
    return {"$ref": "#/$defs/d0", "$defs": links | {f"d{n}": {"type": "string"}}}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constraint.json_schema({"x-guidance": 1}), "x-guidance"),
        (lambda: Constraint.json_schema({"x-guidance": {"lenientt": 1}}), "x-guidance|unknown"),
        (lambda: Constraint.regex("\ud800"), "cannot be used"),
        (lambda: Constraint.json_schema("{"), "is no JSON"),
        (lambda: Constraint.json_schema("[]"), "is a list: allowed is an object"),
        (lambda: Constraint.json_schema({"type": "strng"}), "strng"),
        (lambda: Constraint.json_schema({"type": "integer", "minimum": 5, "maximum": 3}), "Unsatisfiable"),
        (lambda: Constraint.json_schema("false"), "is a bool: allowed is an object"),
        (lambda: Constraint.json_schema({"not": {"type": "string"}}), "not"),
        (lambda: Constraint.json_schema({"$ref": "http://a.b/c"}), "within it"),
        (lambda: Constraint.json_schema({"$ref": "#/$defs/no"}), "within it"),
        (lambda: Constraint.json_schema({"$ref": "#"}), "cannot be met"),
        (lambda: Constraint.json_schema({"properties": {"a": {"$id": "x"}}}), "\\$id"),
        (lambda: Constraint.json_schema({"type": "string", "pattern": "(("}), "unclosed"),
        (lambda: Constraint.json_schema({"type": "string", "pattern": "a" * 9000}), "allowed are 8192"),
        (lambda: Constraint.json_schema({"enum": ["\ud800"]}), "cannot be used"),
        (lambda: Constraint.json_schema(deep(MAX_DEPTH)), "deeper than"),
        (lambda: Constraint.json_schema(deep(100_000)), "(characters|no JSON)"),
        (lambda: Constraint.json_schema(chained(200)), "deeper than"),
        (lambda: Constraint.json_schema({"enum": [f"v{i}" for i in range(20_000)]}), "characters: allowed"),
        (lambda: Constraint.choice([]), "allowed is a list"),
        (lambda: Constraint.choice("yes"), "allowed is a list"),
        (lambda: Constraint.choice(["", "a"]), "allowed is a list"),
        (lambda: Constraint.regex("(a|b"), "unclosed"),
        (lambda: Constraint.regex("(?=a)b"), "look-around"),
        (lambda: Constraint.regex("a" * 10_000), "allowed are 8192"),
        (lambda: Constraint.lark("nonsense"), "cannot be used"),
        (lambda: Constraint.lark("start: " + "(" * 1500 + '"a"' + ")" * 1500), "brackets"),
        (lambda: Constraint.lark('start: A\nA: "a" & "b"'), "cannot be met"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(make, message: str) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        grammars().start(make())
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_what_is_just_within_the_limits_compiles() -> None:
    grammars().start(Constraint.json_schema(chained(MAX_DEPTH // 3 - 2)))
    grammars().start(Constraint.regex("a" * MAX_CHARS["regex"]))
    links = "".join(f'r{i}: "x" (r{i + 1} | "y")?\n' for i in range(MAX_MARKS // 2 - 1))
    grammars().start(Constraint.lark(f'start: r0\n{links}r{MAX_MARKS // 2 - 1}: "a"'))
    tree_like = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}}
    assert follows(grammars().start(Constraint.json_schema(tree_like)), ids('{"kids": [{"kids": []}]}'))


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingExtra, match=r"sssd\[structured\]"):
        Grammars(core().to_str(), vocab_size=vocab_size(), eos_ids=EOS)


def test_a_bundle_without_an_ending_token_is_refused() -> None:
    with pytest.raises(RequestError, match="no ending token"):
        Grammars(core().to_str(), vocab_size=vocab_size(), eos_ids=())


def test_garbage_trees_are_pruned_too() -> None:
    state = grammars().start(Constraint.json_schema(PERSON))
    garbage = GarbageTrees(0, vocab_size())
    garbage.history[0] = ids("{")
    given = garbage._tree(garbage.history[0], 15)
    assert set(map(tuple, paths_of(state.draft(given, 15)))) <= {tuple(p) for p in paths_of(given)} | {
        tuple(ids('{"name": "')[:n]) for n in range(20)
    }
