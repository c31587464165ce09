"""simulate: what theory says about drafters, from a few numbers and without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

import click

from sssd.commands import show

if TYPE_CHECKING:
    from sssd.bench.ewif import Ewif

_BAR = 48  # characters


class _Numbers(click.ParamType[tuple[Any, ...]]):
    def __init__(self, kind: type[int] | type[float]) -> None:
        self._kind = kind
        self.name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        try:
            return tuple(self._kind(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of numbers: give them with commas between, such as 0.73,0.65", param, ctx)


@click.group()
def simulate() -> None:
    """Compute what drafters would bring, from acceptance rates and costs alone."""


@simulate.command()
@click.option("--accept", required=True, type=_Numbers(float), help="Acceptance rate of each drafter, largest first.")
@click.option("--cost", required=True, type=_Numbers(float), help="Cost of one run of each, in runs of the target.")
@click.option("--k", type=_Numbers(int), help="Drafts of each in a round; the best is searched in any case.")
@click.option(
    "--cascade",
    type=click.Choice(["horizontal", "vertical"]),
    default="horizontal",
    show_default=True,
    help="Of several drafters: one behind the other, or one reviewing the other's.",
)
@click.option("--rounds", type=click.IntRange(min=0), default=200_000, show_default=True, help="To simulate; 0 = none.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the simulation.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def ewif(
    accept: tuple[float, ...],
    cost: tuple[float, ...],
    k: tuple[int, ...] | None,
    cascade: Literal["horizontal", "vertical"],
    rounds: int,
    seed: int,
    as_json: bool,
) -> None:
    """Expected walltime improvement factor of a drafter or a cascade, by formula and by simulation.

    In a horizontal cascade every rate is the target's acceptance; in a vertical one it is that of the model above, and
    k is how often a drafter runs for one run of that model. The figures of --k come first, those of the best k last.

    \b
    Examples:
      sssd simulate ewif --accept 0.73 --cost 0.04 --k 7 --json
      sssd simulate ewif --accept 0.73,0.65 --cost 0.04,0.02
      sssd simulate ewif --accept 0.73,0.6 --cost 0.04,0 --cascade vertical --k 2,5
    """
    from sssd.bench.ewif import Cascade, DraftModel, best_of, curve, evaluate

    if not len(accept) == len(cost) == len(k or accept):
        raise click.UsageError("--accept, --cost and --k need one number a drafter each")
    kind: Cascade = "plain" if len(accept) == 1 else cascade
    found: list[Ewif] = []
    if k is not None:
        models = [DraftModel(*numbers) for numbers in zip(accept, cost, k, strict=True)]
        found.append(evaluate(kind, models, rounds=rounds, seed=seed))
    searched = curve(kind, accept, cost)
    best = best_of(searched)
    if not found or found[0].k != best.k:
        models = [DraftModel(*numbers) for numbers in zip(accept, cost, best.k, strict=True)]
        found.append(evaluate(kind, models, rounds=rounds, seed=seed))
    if as_json:
        show.as_json([_named(one, best) for one in found])
    else:
        _show(found, searched, best)


def _named(one: Ewif, best: Ewif) -> dict[str, Any]:
    return asdict(one) | {"best": one.k == best.k}


def _show(found: Sequence[Ewif], searched: Sequence[Ewif], best: Ewif) -> None:
    for one in found:
        simulated = "" if one.simulated is None else f", simulated {one.simulated:.4f} over {one.rounds:,} rounds"
        mark = " (the best k)" if one.k == best.k else ""
        click.echo(
            f"{one.cascade} k={','.join(map(str, one.k))}: EWIF {one.ewif:.4f}{simulated}; "
            f"{one.tokens:.3f} tokens for {one.round_cost:.3f} runs of the target{mark}"
        )
    shown = [one for one in searched if one.k[0] <= max(2 * best.k[0], 8)]
    for one in shown:
        bar = "#" * round(_BAR * one.ewif / best.ewif)
        click.echo(f"  k={','.join(map(str, one.k)):9} {one.ewif:7.4f} {bar}{' <' if one.k == best.k else ''}")
