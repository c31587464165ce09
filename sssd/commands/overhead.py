"""overhead: what the loop itself costs, beside no engine at all."""

from __future__ import annotations

import click

from sssd.commands import show


@click.command()
@click.option("--rows", type=click.IntRange(min=1), default=1, show_default=True, help="Requests in the batch.")
@click.option("--width", type=click.IntRange(min=1), default=8, show_default=True, help="Columns of a row.")
@click.option("--accepted", type=click.IntRange(min=0), help="Draft tokens of a row that are right; all otherwise.")
@click.option(
    "--drafter", type=click.Choice(["maxgram", "retrieval"]), default="retrieval", show_default=True, help="Who drafts."
)
@click.option("--steps", type=click.IntRange(min=10), default=2000, show_default=True, help="Steps to time.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def overhead(rows: int, width: int, accepted: int | None, drafter: str, steps: int, as_json: bool) -> None:
    """Time a step's own work: everything but the forward pass, on an engine that computes nothing.

    \b
    Examples:
      sssd overhead
      sssd overhead --rows 64 --width 16 --json
    """
    from sssd.bench.overhead import measure

    figures = measure(rows=rows, width=width, steps=steps, accepted=accepted, drafter=drafter)
    if as_json:
        show.as_json(figures)
        return
    click.echo(
        f"{rows} rows of {width} columns, {steps} steps: {figures.median_us:.0f} us a step (median), "
        f"{figures.p99_us:.0f} us (99 %), {figures.tokens_per_step:.1f} tokens a row"
    )
    for phase in figures.phases:
        click.echo(f"  {phase.name:8} {phase.mean_us:7.1f} us")
