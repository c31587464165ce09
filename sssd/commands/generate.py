"""generate: one prompt answered on the terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

import click

from sssd.answer import Completion
from sssd.commands import show
from sssd.commands.draft_options import draft_choice, draft_options
from sssd.config import LoopConfig, SamplingParams
from sssd.constraint import Constraint
from sssd.drafting.choose import DrafterName
from sssd.engines.choose import DeviceName
from sssd.errors import EngineError, RequestError
from sssd.llm import LLM
from sssd.loading import load
from sssd.text import Message


@click.command()
@click.option("--engine", required=True, type=click.Path(path_type=Path), help="Bundle directory, or a file in it.")
@click.argument("prompt", required=False)
@click.option("--chat", is_flag=True, help="Put the prompt through the bundle's chat template.")
@click.option("--system", help="System message; needs --chat.")
@click.option("--no-spec", is_flag=True, help="Decode plainly, without drafts.")
@click.option(
    "--drafter",
    type=click.Choice(get_args(DrafterName)),
    default="retrieval",
    show_default=True,
    help="Source of drafts.",
)
@click.option("--datastore", type=click.Path(path_type=Path), help="File that --drafter retrieval drafts from too.")
@click.option("--live", type=click.Path(path_type=Path), help="File in which --drafter retrieval remembers answers.")
@draft_options
@click.option(
    "--max-draft-tokens", type=int, default=LoopConfig.max_draft_tokens, show_default=True, help="Most drafts a step."
)
@click.option("--max-tokens", type=int, default=SamplingParams.max_tokens, show_default=True, help="Longest answer.")
@click.option("--min-tokens", type=int, default=SamplingParams.min_tokens, show_default=True, help="Shortest answer.")
@click.option(
    "--temperature",
    type=float,
    default=SamplingParams.temperature,
    show_default=True,
    help="0 takes the likeliest token.",
)
@click.option("--top-k", type=int, default=SamplingParams.top_k, show_default=True, help="0 is off.")
@click.option("--top-p", type=float, default=SamplingParams.top_p, show_default=True, help="1 is off.")
@click.option("--min-p", type=float, default=SamplingParams.min_p, show_default=True, help="0 is off.")
@click.option("--seed", type=int, help="Makes sampling repeatable; drawn and shown by --stats otherwise.")
@click.option(
    "--repetition-penalty", type=float, default=SamplingParams.repetition_penalty, show_default=True, help="1 is off."
)
@click.option("--stop", multiple=True, help="Text that ends the answer; may be given several times.")
@click.option("--ignore-eos", is_flag=True, help="Go on past the model's own ending token.")
@click.option(
    "--json-schema",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with a JSON Schema that the answer keeps to.",
)
@click.option("--regex", help="Pattern that the whole answer matches.")
@click.option("--choice", multiple=True, help="Text that may be the answer; give it several times.")
@show.DEVICE
@click.option("--threads", type=click.IntRange(min=0), default=0, help="0 takes one a physical core.")
@click.option("--fixed-width", type=int, help="Run every step at exactly this many columns.")
@click.option("--fastest", is_flag=True, help="Allow steps so narrow that the text may differ by rounding.")
@click.option("--stats", is_flag=True, help="Say speed, tokens per step and accepted lengths on stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print the completion as JSON instead of streaming text.")
def generate(
    engine: Path,
    prompt: str | None,
    chat: bool,
    system: str | None,
    no_spec: bool,
    drafter: DrafterName,
    datastore: Path | None,
    live: Path | None,
    drafts: tuple[Path, ...],
    draft_k: str | None,
    lenience: float | None,
    draft_children: int,
    draft_always: bool,
    max_draft_tokens: int,
    max_tokens: int,
    min_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int | None,
    repetition_penalty: float,
    stop: tuple[str, ...],
    ignore_eos: bool,
    json_schema: Path | None,
    regex: str | None,
    choice: tuple[str, ...],
    device: DeviceName | None,
    threads: int,
    fixed_width: int | None,
    fastest: bool,
    stats: bool,
    as_json: bool,
) -> None:
    """Answer PROMPT (or stdin) on stdout, as it is generated.

    \b
    Examples:
      sssd generate --engine smol/ --chat "Write a haiku about trains."
      cat article.txt | sssd generate --engine smol/ --max-tokens 64 --stats
      sssd generate --engine smol/ --temperature 0.8 --seed 1 "Once upon a time"
      sssd generate --engine smol/ --chat --choice yes --choice no "Is Rome in Italy?"
      sssd generate --engine big/ --draft small/ --draft tiny/ --draft-k "5,14,10;1,10;10" --lenience 2 "Once upon"
    """
    params = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        repetition_penalty=repetition_penalty,
        stop=stop,
        ignore_eos=ignore_eos,
    )
    if system is not None and not chat:
        raise click.UsageError("--system needs --chat: a plain prompt has no system message")
    if no_spec and (datastore or live):
        raise click.UsageError("--datastore and --live need speculation: leave --no-spec out")
    constraint = _constraint(json_schema, regex, choice)
    if no_spec and drafts:
        raise click.UsageError("--draft needs speculation: leave --no-spec out")
    stack = draft_choice(drafts, draft_k, lenience, draft_children, draft_always)
    text = _prompt(prompt)
    with load(
        engine,
        drafter="none" if no_spec else drafter,
        datastore=datastore,
        live=live,
        drafts=stack.paths,
        cascade=stack.config,
        device=device,
        threads=threads,
        n_slots=1,
        n_warm=0,
        max_draft_tokens=0 if no_spec else max_draft_tokens,
        fixed_width=fixed_width,
        fastest=fastest,
    ) as llm:
        done = _answer(llm, text, system, params, constraint, chat=chat, quiet=as_json)
    if as_json:
        show.as_json(done)
    if stats:
        _show_stats(done)


def _prompt(given: str | None) -> str:
    if given is not None and given != "-":
        return given
    if sys.stdin.isatty():
        raise click.UsageError("no prompt: give one as an argument, or pipe it in")
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as e:
        raise RequestError(f"the prompt on stdin is not UTF-8 (byte {e.start}): convert it first") from None


def _constraint(json_schema: Path | None, regex: str | None, choice: tuple[str, ...]) -> Constraint | None:
    if (json_schema is not None) + (regex is not None) + bool(choice) > 1:
        raise click.UsageError("--json-schema, --regex and --choice cannot go together: give one of them")
    if json_schema is not None:
        try:
            return Constraint.json_schema(json_schema.read_text("utf-8"))
        except UnicodeDecodeError as e:
            raise RequestError(f"{json_schema} is not UTF-8 (byte {e.start}): convert it first") from None
    if regex is not None:
        return Constraint.regex(regex)
    return Constraint.choice(choice) if choice else None


def _answer(
    llm: LLM,
    text: str,
    system: str | None,
    params: SamplingParams,
    constraint: Constraint | None,
    *,
    chat: bool,
    quiet: bool,
) -> Completion:
    if not text:
        raise RequestError("the prompt is empty: give at least one character")
    turns = [Message("system", system)] if system is not None else []
    prompt = llm.chat_ids([*turns, Message("user", text)]) if chat else text
    for piece in llm.stream(prompt, params, constraint=constraint):
        if not quiet:
            click.echo(piece.text, nl=False)
        if piece.completion is not None:
            done = piece.completion
    if not quiet:
        click.echo()
    if done.error is not None:
        raise EngineError(done.error)
    return done


def _show_stats(done: Completion) -> None:
    s = done.stats
    show.remark(f"{s.prompt_tokens} prompt tokens read in {s.read_seconds:.2f} s, {s.tokens} written, seed {s.seed}")
    show.remark(f"{s.tokens_per_second:.1f} tokens/s, {s.tokens_per_step:.2f} tokens per step over {s.steps} steps")
    for name, drafted in s.drafted.items():
        accepted = s.accepted.get(name, 0)
        show.remark(f"drafts from {name}: {accepted} of {drafted} accepted ({accepted / drafted:.0%})")
    most = max(s.accepted_lengths.values(), default=1)
    for length, n in s.accepted_lengths.items():
        show.remark(f"  accepted {length:3}: {n:5} steps {'#' * -(-40 * n // most)}")
