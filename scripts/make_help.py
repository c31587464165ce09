"""Write docs/cli.md from the commands' own help; `--check` says whether it is up to date instead.

usage: python scripts/make_help.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from sssd.cli import main

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
HEAD = (
    "# The command line\n\nGenerated from the commands' own help by `python scripts/make_help.py`; a test compares.\n"
)


def sections(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[str]:
    """The help of a command and of everything below it."""
    context = click.Context(command, info_name=name, parent=parent, max_content_width=100, terminal_width=100)
    yield f"\n## {context.command_path}\n\n```text\n{command.get_help(context).rstrip()}\n```\n"
    if isinstance(command, click.Group):
        for sub in command.list_commands(context):
            yield from sections(command.commands[sub], sub, context)


def page() -> str:
    """The whole page."""
    return HEAD + "".join(sections(main, "sssd"))


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(
            0 if PAGE.exists() and PAGE.read_text("utf-8") == page() else "docs/cli.md is old: run scripts/make_help.py"
        )
    if sys.argv[1:]:
        sys.exit(__doc__)
    PAGE.write_text(page(), "utf-8")
