from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sssd.commands.config_file import config_option
from sssd.errors import ConfigError


@click.command()
@config_option()
@click.option("--engine", required=True, type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), default=8000)
@click.option("--max-body-mb", "max_body", type=float, default=8.0)
@click.option("--name", "names", multiple=True)
@click.option("--drafter", type=click.Choice(["retrieval", "none"]), default="retrieval")
@click.option("--fastest", is_flag=True)
def command(engine: Path, port: int, max_body: float, names: tuple[str, ...], drafter: str, fastest: bool) -> None:
    click.echo(repr((str(engine), port, max_body, names, drafter, fastest)))


def run(path: Path, text: str, *args: str) -> str:
    path.write_text(text)
    done = CliRunner().invoke(command, ["--config", str(path), *args])
    if isinstance(done.exception, ConfigError):
        raise done.exception
    return done.output.strip()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "serve.yaml"


def test_a_file_gives_options_by_their_names(path: Path) -> None:
    text = "engine: smol\nport: 9000\nmax-body-mb: 0.5\nname: [a, b]\ndrafter: none\nfastest: yes\n"
    assert run(path, text) == repr(("smol", 9000, 0.5, ("a", "b"), "none", True))


def test_the_command_line_goes_before_the_file(path: Path) -> None:
    out = run(path, "engine: smol\nport: 9000\nname: a\n", "--port", "1", "--name", "z")
    assert out == repr(("smol", 1, 8.0, ("z",), "retrieval", False))


def test_an_empty_file_changes_nothing(path: Path) -> None:
    assert run(path, "# nothing yet\n", "--engine", "x") == repr(("x", 8000, 8.0, (), "retrieval", False))


def test_every_mistake_is_named_at_once(path: Path) -> None:
    text = "engine: smol\nprot: 1\nport: 70000\nmax_body_mb: 1\ndrafter: magic\nfastest: perhaps\nconfig: x\n"
    with pytest.raises(ConfigError) as caught:
        run(path, text)
    message = str(caught.value)
    assert "line 2: prot is not known: did you mean port?" in message
    assert "line 3: port: 70000 is not in the range" in message
    assert "line 4: max_body_mb is not known: did you mean max-body-mb?" in message
    assert "line 5: drafter: 'magic' is not one of" in message
    assert "line 6: fastest: 'perhaps' is not a valid boolean" in message
    assert "line 7: config is not known" in message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("port: 80.5", "line 1: port: '80.5' is not a valid integer range"),
        ("port: [1, 2]", "line 1: port: a single value is expected, not a list"),
        ("port: {a: 1}", "line 1: port: a single value is expected, not a mapping"),
        ("name: [[a]]", "line 1: name: a list of single values"),
        ("port: 1\nport: 2", "line 2: port is given twice"),
        ("port: 1: 2", "line 1: no YAML"),
    ],
)
def test_a_value_must_be_one_that_could_stand_on_the_command_line(path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run(path, text)
    assert says in str(caught.value)


def test_what_is_missing_in_both_is_asked_for(path: Path) -> None:
    assert "Missing option '--engine'" in run(path, "port: 1\n")
