"""`sssd bench` on a tiny exported model, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sssd.cli import main
from tests.helpers.tiny_directory import write_directory


def sssd(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    write_directory(directory / "model")
    assert sssd("export", directory / "model", "--out", directory / "bundle").exit_code == 0
    return directory / "bundle"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [{"id": f"{t}{i}", "task": t, "prompt": f"the quick {i} fox the quick"} for t in "ab" for i in range(3)]
    rows.append({"id": "long", "task": "a", "prompt": "fox " * 90})
    path = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def test_every_mode_says_the_same_and_every_record_has_its_figures(tiny: Path, data: Path, tmp_path: Path) -> None:
    store = tmp_path / "chat.store"
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog " * 20)
    assert sssd("datastore", "build", "--tokenizer", tiny, "--out", store, tmp_path / "text.txt").exit_code == 0
    args = ("bench", "--engine", tiny, "--data", data, "--max-tokens", "12", "--batch", "1,3", "--rate", "50")
    page = tmp_path / "r.html"
    done = sssd(*args, "--datastore", store, "--fastest", "--json", "--html", page)
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    modes = ["null", "maxgram", "retrieval", "retrieval+datastore", "null@fastest"]
    assert [r["mode"] for r in rows] == modes * 7
    assert {(r["batch"], r["task"], r["rate"]) for r in rows} == {
        *((batch, task, None) for batch in (1, 3) for task in ("a", "b", "all")),
        (3, "all", 50.0),
    }
    for r in rows:
        assert r["weights"] == "fp32"
        assert r["tokens"] == 12 * r["prompts"] == 12 * (3 if r["task"] in "ab" else 6)
        assert r["mode"] == "null@fastest" or r["differing"] == 0
        assert r["tokens_per_s"] > 0
        assert r["speedup_low"] <= r["speedup"] <= r["speedup_high"]
        assert r["tokens_per_step"] >= 1
    assert any(r["drafted"] for r in rows if r["mode"] == "retrieval")
    assert any(r["reliability"] for r in rows if r["mode"] == "retrieval")
    assert "a: prompts passed over: 1 (long)" in done.stderr
    assert page.read_text("utf-8").startswith("<!doctype html>")


def test_tables_go_to_stdout_and_an_older_benchmark_beside_them(tiny: Path, data: Path, tmp_path: Path) -> None:
    args = ("bench", "--engine", tiny, "--data", data, "--max-tokens", "4", "--mode", "maxgram", "--task", "b")
    old = tmp_path / "old.json"
    old.write_text(sssd(*args, "--json").stdout)
    shown = sssd(*args, "--compare", old, "--limit", "2", "--repeat", "2")
    assert shown.exit_code == 0, shown.output
    assert "Offline (speed-up" in shown.stdout
    assert "Against the older benchmark" in shown.stdout
    assert "command:" in shown.stdout
    assert "warning: fewer than 5 prompts of b" in shown.stderr
    assert "warning" not in shown.stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--mode", "null,eagle"), "mode is 'eagle': allowed are null, maxgram, retrieval, retrieval+datastore"),
        (("--mode", "retrieval+datastore"), "give it with --datastore FILE"),
        (("--datastore", "absent.store"), "absent.store"),
        (("--task", "zzz"), "no prompts of task 'zzz': there are a, b"),
        (("--data", "absent.jsonl"), "cannot read absent.jsonl"),
        (("--engine", "absent/"), "no bundle at absent"),
        (("--batch", "1,x"), "'1,x' is no list of sizes"),
        (("--batch", "0"), "batch is (0,): allowed is"),
        (("--rate", "-1"), "rate is (-1.0,): allowed is"),
        (("--chat",), "no chat template"),
        (("--max-tokens", "64"), "max_tokens is 64: allowed is 1 to 63"),
        (("--max-tokens", "63"), "no prompt of task 'a' can be asked"),
        (("--max-tokens", "0"), "max_tokens is 0"),
        (("--fixed-width", "1"), "fixed_width is 1"),
        (("--fixed-width", "8", "--fastest"), "give one of them"),
        (("--compare", "absent.json"), "cannot read absent.json"),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(
    tiny: Path, data: Path, args: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = sssd("bench", "--engine", tiny, "--data", data, "--max-tokens", "12", *args)
    assert done.exit_code != 0
    assert says in done.stderr
    assert "Traceback" not in done.output
    assert done.stdout == ""
    assert len([line for line in done.stderr.splitlines() if line.startswith("Error")]) == 1


def test_prompts_must_be_given(tiny: Path, tmp_path: Path) -> None:
    assert "give --data one or more JSONL files" in sssd("bench", "--engine", tiny).stderr
    (tmp_path / "empty.jsonl").touch()
    assert "no prompts in" in sssd("bench", "--engine", tiny, "--data", tmp_path / "empty.jsonl").stderr
