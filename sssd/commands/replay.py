"""replay: drafters against recorded answers, without a model."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import click

from sssd.bench.replay import ReplayRecord
from sssd.bench.replay_files import DrafterName, RulesName, Stack
from sssd.commands import show
from sssd.commands.draft_options import DraftChoice, draft_choice, draft_options
from sssd.spec import Bundle, open_bundle
from sssd.text import Tokenizer
from sssd.types import Source


class _Budgets(click.ParamType[tuple[int, ...]]):
    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        try:
            budgets = tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of numbers: give them with commas between, such as 7,15", param, ctx)
        if min(budgets) < 1:
            self.fail(f"a budget is {min(budgets)}: allowed is 1 or more", param, ctx)
        return budgets


@click.command()
@click.option(
    "--tokenizer", required=True, type=click.Path(path_type=Path), help="Bundle whose tokenizer the text is for."
)
@click.option(
    "--data",
    required=True,
    multiple=True,
    type=click.Path(path_type=Path),
    help="Recorded answers: JSONL, or an .npz token set; may be given several times.",
)
@click.option(
    "--datastore",
    type=click.Path(path_type=Path),
    help="File that retrieval drafts from too: a datastore, or an .npz token set for its documents.",
)
@click.option("--live", is_flag=True, help="Make every answer searchable once it has ended.")
@click.option("--budget", "budgets", type=_Budgets(), default="3,7,15,31", show_default=True, help="Most draft nodes.")
@click.option(
    "--drafter", type=click.Choice(get_args(DrafterName)), default="retrieval", show_default=True, help="Who drafts."
)
@click.option(
    "--rules",
    type=click.Choice(get_args(RulesName)),
    default="default",
    show_default=True,
    help="Of retrieval: ours, or those of the SSSD authors' library.",
)
@draft_options
@click.option("--limit", type=click.IntRange(min=1), help="First records of each file only.")
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON.")
def replay(
    tokenizer: Path,
    data: tuple[Path, ...],
    datastore: Path | None,
    live: bool,
    budgets: tuple[int, ...],
    drafter: DrafterName,
    rules: RulesName,
    drafts: tuple[Path, ...],
    draft_k: str | None,
    lenience: float | None,
    draft_children: int,
    draft_always: bool,
    limit: int | None,
    as_json: bool,
) -> None:
    """Replay recorded answers: how many tokens a step would each drafter have made, and in how many microseconds?

    \b
    Examples:
      sssd replay --tokenizer smol/ --data answers.jsonl --datastore chat.store
      sssd replay --tokenizer smol/ --data set.npz --datastore set.npz --rules sssd --budget 15 --json
      sssd replay --tokenizer smol/ --data answers.jsonl --draft smol-int4/ --budget 15
    """
    from sssd.bench.replay_files import open_store, replay_files
    from sssd.draft_models import weight_bytes

    if draft_always:
        raise click.UsageError("--draft-always says nothing here: a replay uses every draft model in every step")
    if drafts and rules == "sssd":
        raise click.UsageError("--rules sssd cannot draft behind guesses: use --rules default with --draft")
    choice = draft_choice(drafts, draft_k, lenience, draft_children, True)
    bundle = open_bundle(tokenizer)
    codec = Tokenizer(bundle)
    with ExitStack() as opened:
        store = None
        if datastore is not None:
            store = open_store(datastore, codec.fingerprint())
            opened.callback(store.close)
        records = replay_files(
            data,
            encode=codec.encode,
            drafter=drafter,
            rules=rules,
            budgets=budgets,
            store=store,
            store_name=None if datastore is None else datastore.name,
            live=live,
            limit=limit,
            stack=_stack(choice, bundle),
            target_bytes=weight_bytes(bundle),
        )
    if as_json:
        show.as_json([record.to_json() for record in records])
    else:
        _table(records)


def _stack(choice: DraftChoice, target: Bundle) -> Stack:
    """What puts the chosen draft models over a drafter."""
    from sssd.bench.replay_files import unstacked
    from sssd.draft_models import make_cascade, open_drafts

    if choice.config is None:
        return unstacked
    config, bundles = choice.config, open_drafts(choice.paths, target=target)
    return lambda below: make_cascade(bundles, below, config, target=target, n_slots=1, device="cpu", threads=0)


def _table(records: list[ReplayRecord]) -> None:
    head = f"{'set':28}{'drafter':12}{'budget':>7}{'tokens/step':>13}{'SWI':>16}{'propose us':>14}{'accept us':>11}"
    click.echo(f"{head}  accepted of drafted")
    for r in records:
        times = f"{r.propose_us_p50:.1f} / {r.propose_us_p99:.0f}"
        by_source = ", ".join(
            f"{source.name.lower()} {accepted:,} of {drafted:,}"
            for source, drafted, accepted in zip(Source, r.drafted, r.accepted, strict=True)
            if drafted
        )
        figures = f"{r.budget:7}{r.tokens_per_step:13.3f}{r.swi.text():>16}{times:>14}{r.accept_us_p50:11.1f}"
        click.echo(f"{r.set:28}{r.drafter:12}{figures}  {by_source}")
