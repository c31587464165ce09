"""doctor: what this machine can run, what a bundle needs, what to install."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sssd.commands import show

if TYPE_CHECKING:
    from sssd.doctor.report import Report


@click.command()
@click.argument("bundle", required=False, type=click.Path(path_type=Path))
@click.option("--slots", type=click.IntRange(min=1), help="Requests to reckon with; those of serving by default.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(bundle: Path | None, slots: int | None, as_json: bool) -> None:
    """Say what this machine can run, what BUNDLE needs of it, and what to install.

    Every library is tried in a process of its own, so that one that crashes is a finding and no crash.

    \b
    Examples:
      sssd doctor
      sssd doctor llama3/llama3.plan --slots 16
      sssd doctor --json | jq .advice
    """
    from sssd.doctor.report import examine_machine

    found = examine_machine(bundle, n_slots=slots)
    if as_json:
        show.as_json(found)
    else:
        _show(found)


def _show(found: Report) -> None:
    rows = [("CPU", f"{found.cpu}, {found.cores} cores"), ("memory", show.size(found.memory))]
    rows += [(f"GPU {i}", f"{g.name}, {show.size(g.memory)}, {g.compute_capability}") for i, g in enumerate(found.gpus)]
    rows += [(part.name, f"{'works' if part.works else 'no'}: {part.told}") for part in found.parts]
    if found.bundle is not None:
        b = found.bundle
        rows += [
            ("bundle", f"{b.name}, for {b.runs_on}"),
            ("weights", show.size(b.weights)),
            ("KV of a slot", show.size(b.kv_slot)),
            ("in all", f"{show.size(b.total)} for {b.n_slots} full slots; {b.slots_that_fit} fit here"),
        ]
    for name, value in rows:
        click.echo(f"{name + ':':20}{value}")
    for line in found.advice:
        click.echo(f"- {line}")
