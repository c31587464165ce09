"""The options that declare a cascade of draft models, and what they come to. Shared by the commands that run one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click

from sssd.config import CASCADE_PRESETS, CascadeConfig, cascade_config


class DraftChoice(NamedTuple):
    """Draft bundles, largest first, and how they work together; no bundles, no cascade."""

    paths: tuple[Path, ...]
    config: CascadeConfig | None


def draft_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --draft, --draft-k, --lenience, --draft-children and --draft-always."""
    for option in (
        click.option(
            "--draft-always", is_flag=True, help="Use every draft model in every step, whether it pays or not."
        ),
        click.option(
            "--draft-children",
            type=click.IntRange(1, 20),
            default=CascadeConfig.children,
            show_default=True,
            help="Children a draft node may have; above 1 the drafts branch out.",
        ),
        click.option("--lenience", type=float, help="Between draft models: accept above 1 / LENIENCE."),
        click.option(
            "--draft-k",
            help="Positions by draft model, such as 5,14,10;1,10;10; or " + ", ".join(CASCADE_PRESETS) + ".",
        ),
        click.option(
            "--draft",
            "drafts",
            multiple=True,
            type=click.Path(path_type=Path),
            help="Bundle of a draft model over the drafter; several times, the largest first.",
        ),
    ):
        command = option(command)
    return command


def draft_choice(
    drafts: tuple[Path, ...], draft_k: str | None, lenience: float | None, draft_children: int, draft_always: bool
) -> DraftChoice:
    """What the options say. Raises UsageError for options without --draft, SssdError for values out of range."""
    if drafts:
        config = cascade_config(
            len(drafts), k=draft_k, lenience=lenience, children=draft_children, adaptive=not draft_always
        )
        return DraftChoice(drafts, config)
    if draft_k is not None or lenience is not None or draft_always or draft_children != CascadeConfig.children:
        raise click.UsageError("--draft-k, --lenience, --draft-children and --draft-always need a --draft BUNDLE")
    return DraftChoice((), None)
