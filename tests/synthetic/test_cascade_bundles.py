"""Cascades of exported models, as a user declares them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from sssd import SamplingParams, SpecMismatch, load
from sssd.cli import main
from sssd.config import CascadeConfig
from sssd.errors import EngineError, SssdError
from tests.helpers.tiny_directory import write_directory
from tests.helpers.tiny_models import tiny_tokenizer


def sssd(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args])


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, its first layer, the same in int8, and a short one."""
    root = tmp_path_factory.mktemp("cascade")
    write_directory(root / "model")
    for name, *options in (
        ("target",),
        ("first", "--draft-layers", "1"),
        ("int8", "--weights", "int8"),
        ("short", "--max-len", "32"),
    ):
        made = sssd("export", root / "model", "--out", root / name, *options)
        assert made.exit_code == 0, made.output
    return root


PROMPTS = [np.array(ids, np.int32) for ids in ([5, 6, 7, 5, 6], [9] * 20, [3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4], [8])]
GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=24, ignore_eos=True, temperature=0.9, seed=3)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
@pytest.mark.parametrize(
    ("drafts", "cascade"),
    [
        (["int8"], None),
        (["first"], CascadeConfig(((3, 4), (4,)), lenience=3, children=3, adaptive=False)),
        (["int8", "first"], CascadeConfig(((4, 3, 2), (1, 3), (2,)), lenience=2, adaptive=False)),
        (["target"], CascadeConfig(((6, 1), (1,)), adaptive=False)),
    ],
)
def test_the_output_is_that_of_the_target_alone(bundles: Path, drafts, cascade, params) -> None:
    with load(bundles / "target", drafter=None) as plain:
        expected = [done.token_ids for done in plain.generate(PROMPTS, params)]
    paths = [bundles / name for name in drafts]
    with load(bundles / "target", drafts=paths, cascade=cascade) as llm:
        done = llm.generate(PROMPTS, params)
    assert [one.token_ids for one in done] == expected
    if cascade is not None:
        assert sum(one.stats.drafted.get("model", 0) for one in done) > 0
    if drafts == ["target"]:
        assert all(one.stats.accepted["model"] == one.stats.drafted["model"] for one in done), (
            "it agrees with itself, draws too"
        )


def test_a_draft_of_another_vocabulary_is_refused_with_the_first_difference(bundles: Path) -> None:
    other = write_directory(bundles / "other")
    vocabulary = json.loads(tiny_tokenizer().to_str())
    tokens = vocabulary["model"]["vocab"]
    ids = {i: token for token, i in tokens.items()}
    tokens[ids[40]], tokens[ids[50]] = 50, 40
    (other / "tokenizer.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    assert sssd("export", other, "--out", bundles / "swapped").exit_code == 0
    with pytest.raises(SpecMismatch, match=r"another vocabulary than .*: token 40 is .* and should be"):
        load(bundles / "target", drafts=[bundles / "swapped"])


def test_a_draft_with_shorter_slots_is_refused(bundles: Path) -> None:
    with pytest.raises(SpecMismatch, match="holds 32 tokens a request, the target 64"):
        load(bundles / "target", drafts=[bundles / "short"])


def test_drafts_that_do_not_fit_into_memory_are_refused(bundles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sssd.draft_models._available_bytes", lambda: 100)
    with pytest.raises(EngineError, match="MiB are free"):
        load(bundles / "target", drafts=[bundles / "int8"])


def test_a_cascade_without_models_or_for_others_is_refused(bundles: Path) -> None:
    with pytest.raises(SssdError, match="needs draft models"):
        load(bundles / "target", cascade=CascadeConfig(((3, 4), (4,))))
    with pytest.raises(SssdError, match="for 1 draft models and there are 2"):
        load(bundles / "target", drafts=[bundles / "int8"] * 2, cascade=CascadeConfig(((3, 4), (4,))))


def test_generate_takes_a_stack_and_says_the_same(bundles: Path) -> None:
    args = ("generate", "--engine", bundles / "target", "--max-tokens", "20", "--ignore-eos")
    plain = sssd(*args, "--no-spec", "a b c a b")
    stack = ("--draft", bundles / "int8", "--draft", bundles / "first", "--draft-k", "5,14,10;1,10;10")
    done = sssd(*args, *stack, "--lenience", "2", "--draft-always", "--stats", "a b c a b")
    assert done.exit_code == 0, done.output
    assert done.stdout == plain.stdout
    assert "drafts from model" in done.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--draft-k", "5,10;10"), "need a --draft BUNDLE"),
        (("--draft", "int8", "--draft-k", "5;10"), "the rows of K have 1, 1 entries"),
        (("--draft", "int8", "--lenience", "0.5"), "lenience is 0.5: allowed is 1 or more"),
        (("--draft", "int8", "--no-spec"), "--draft needs speculation"),
        (("--draft", "absent"), "no bundle at"),
    ],
)
def test_a_mistake_is_one_line(bundles: Path, options: tuple[str, ...], says: str) -> None:
    options = tuple(str(bundles / o) if o in ("int8", "absent") else o for o in options)
    done = sssd("generate", "--engine", bundles / "target", *options, "a b")
    assert done.exit_code != 0
    assert says in done.stderr
    assert "Traceback" not in done.output


def test_bench_compares_cascades_with_their_parts(bundles: Path, tmp_path: Path) -> None:
    data = tmp_path / "prompts.jsonl"
    rows = [{"id": f"p{i}", "task": "t", "prompt": f"the quick {i} fox the quick"} for i in range(3)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = ("bench", "--engine", bundles / "target", "--data", data, "--max-tokens", "16")
    done = sssd(*args, "--draft", bundles / "int8", "--draft-k", "3,4;4", "--json")
    assert done.exit_code == 0, done.output
    found = {row["mode"]: row for row in json.loads(done.stdout)}
    assert list(found) == [
        "null", "maxgram", "retrieval", "draft", "cascade+maxgram", "cascade+retrieval", "cascade@adaptive",
    ]  # fmt: skip
    assert all(row["differing"] == 0 for row in found.values())
    for mode in ("draft", "cascade+maxgram", "cascade+retrieval"):
        row = found[mode]
        (level,) = row["levels"]
        assert (level["name"], level["reviews"] > 0) == ("int8", True)
        steps = row["tokens"] / row["tokens_per_step"]
        size = level["n_bytes"] / _size(bundles / "target")
        assert row["swi"]["by_size"] == pytest.approx(row["tokens"] / (steps + level["reviews"] * size))
    assert found["retrieval"]["swi"]["measured"] == pytest.approx(found["retrieval"]["tokens_per_step"])
    refused = sssd(*args, "--mode", "draft")
    assert "give its bundle with --draft" in refused.stderr
    assert "no mode uses the draft models" in sssd(*args, "--mode", "maxgram", "--draft", bundles / "int8").stderr


def _size(bundle: Path) -> int:
    return (bundle / "weights.safetensors").stat().st_size


def test_replay_runs_a_stack_over_recorded_answers(bundles: Path, tmp_path: Path) -> None:
    with load(bundles / "target", drafter=None) as llm:
        answer = llm.generate("the quick fox", SamplingParams(max_tokens=24, ignore_eos=True))
        text = llm.tokenizer.decode(answer.token_ids)
    data = tmp_path / "answers.jsonl"
    data.write_text(json.dumps({"prompt": "the quick fox", "answer": text}) + "\n")
    args = ("replay", "--tokenizer", bundles / "target", "--data", data, "--budget", "8")
    done = sssd(*args, "--draft", bundles / "target", "--draft-k", "4,4;4", "--drafter", "maxgram", "--json")
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)
    assert row["levels"][0]["reviews"] > 0
    assert row["swi"]["by_size"] < row["tokens_per_step"]
    assert "4,4" not in sssd(*args, "--drafter", "maxgram").stdout
    assert "use --rules default with --draft" in sssd(*args, "--rules", "sssd", "--draft", bundles / "int8").stderr
