"""--config FILE: a command's options from a YAML file. Owns the file's meaning: a name and a value are an option's.

Knows no option by name. Values are read as if they stood on the command line, where they can still be overridden; a
file is refused whole, with all of its mistakes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from sssd.server.yamlfile import Entry, Mistakes, read_mapping

_F = TypeVar("_F", bound=Callable[..., Any])
NAME = "config"


def option_names(command: click.Command) -> dict[str, click.Option]:
    """What a file may hold: the long names of a command's options without dashes in front."""
    options = [p for p in command.params if isinstance(p, click.Option) and p.name not in (NAME, "help", "check")]
    return {max(o.opts, key=len).removeprefix("--"): o for o in options}


def read_config(path: Path, command: click.Command, ctx: click.Context) -> dict[str, Any]:
    """Defaults for `command`, by parameter. Raises ConfigError naming every mistake with its line."""
    known = option_names(command)
    mistakes = Mistakes(path)
    values: dict[str, Any] = {}
    for name, entry in read_mapping(path).items():
        if name not in known:
            mistakes.unknown(name, entry.line, list(known))
            continue
        option = known[name]
        assert option.name is not None
        try:
            values[option.name] = option.type_cast_value(ctx, _as_typed(option, entry))
        except click.BadParameter as e:
            mistakes.add(entry.line, f"{name}: {e.message}")
    mistakes.raise_any()
    return values


def _as_typed(option: click.Option, entry: Entry) -> str | list[str]:
    """What one would write on the command line. Raises BadParameter for a shape that cannot stand there."""
    if isinstance(entry.value, dict):
        raise click.BadParameter("a single value is expected, not a mapping")
    if not isinstance(entry.value, list):
        return [entry.value] if option.multiple else str(entry.value)
    if not option.multiple:
        raise click.BadParameter("a single value is expected, not a list")
    if not all(isinstance(e.value, str) for e in entry.value):
        raise click.BadParameter("a list of single values is expected")
    return [e.value for e in entry.value]


def _load(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    if value is not None:
        ctx.default_map = {**(ctx.default_map or {}), **read_config(value, ctx.command, ctx)}
    return value


def config_option() -> Callable[[_F], _F]:
    """The decorator that gives a command --config. It is read before the other options."""
    return click.option(
        "--config",
        NAME,
        type=click.Path(path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=_load,
        help="YAML file with options by their names; the command line goes before it.",
    )
