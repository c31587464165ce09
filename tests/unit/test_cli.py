from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from sssd.bench.overhead import measure
from sssd.cli import main
from tests.helpers.data import ROOT
from tests.helpers.toy import text_bundle


def sssd(*args: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, list(args), input=stdin)


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    found: list[tuple[tuple[str, ...], click.Command]] = []
    for name, command in group.commands.items():
        found.append(((*path, name), command))
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
    return found


@pytest.mark.parametrize(("path", "command"), commands(main), ids=lambda v: "-".join(v) if isinstance(v, tuple) else "")
def test_every_command_has_help_that_ends_in_examples(path: tuple[str, ...], command: click.Command) -> None:
    done = sssd(*path, "--help")
    assert done.exit_code == 0
    if not isinstance(command, click.Group):
        assert f"  sssd {' '.join(path)}" in done.output.split("Examples:")[1]


def test_the_help_page_is_what_the_commands_say() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "make_help.py", "--check"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def test_a_mistyped_option_is_refused_with_what_was_meant() -> None:
    done = sssd("generate", "--egnine", "x", "hello")
    assert done.exit_code == 2
    assert "No such option" in done.output
    assert "--engine" in done.output


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("generate", "--engine", "absent/", "hi"), "no bundle at absent"),
        (("generate", "--engine", "absent/", "--temperature", "-1", "hi"), "temperature is -1.0: allowed is"),
        (("generate", "--engine", "absent/", "--top-p", "2", "hi"), "top_p is 2.0"),
        (("generate", "--engine", "absent/", "--fixed-width", "1", "hi"), "fixed_width is 1"),
        (("inspect", "absent/"), "no bundle at absent"),
        (("check", "absent/"), "no bundle at absent"),
        (("export", "absent.gguf", "--out", "x"), "absent.gguf"),
        (("generate", "--engine", "absent/", "--system", "be brief", "hi"), "--system needs --chat"),
    ],
)
def test_a_mistake_is_one_line_and_a_status(
    args: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = sssd(*args)
    assert done.exit_code != 0
    assert says in done.stderr
    assert "Traceback" not in done.output
    assert done.stdout == ""
    assert len([line for line in done.stderr.splitlines() if line.startswith("Error")]) == 1


def test_inspect_shows_the_manifest(tmp_path: Path) -> None:
    text_bundle(tmp_path / "toy")
    shown = sssd("inspect", str(tmp_path / "toy"))
    assert "scripted" in shown.stdout
    assert "tokenizer.json" in shown.stdout
    as_json = sssd("inspect", "--json", str(tmp_path / "toy"))
    assert '"vocab_size": 257' in as_json.stdout


def test_overhead_counts_every_committed_token() -> None:
    figures = measure(rows=3, width=4, steps=20)
    assert figures.tokens_per_step == 4
    assert figures.median_us > 0
    assert {p.name for p in figures.phases} == {"plan", "propose", "pack", "verify", "commit", "apply"}
    done = sssd("overhead", "--steps", "10", "--json")
    assert '"median_us"' in done.stdout


def test_an_answer_has_one_form_at_most(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["generate", "--engine", str(tmp_path), "--regex", "a", "--choice", "b", "hi"])
    assert done.exit_code == 2
    assert "cannot go together" in done.stderr
