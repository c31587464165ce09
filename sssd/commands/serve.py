"""serve: the OpenAI-compatible server."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import click

from sssd.commands import show
from sssd.commands.config_file import config_option
from sssd.commands.draft_options import draft_choice, draft_options
from sssd.config import LoopConfig
from sssd.drafting.choose import DrafterName
from sssd.engines.choose import DeviceName
from sssd.errors import EngineError, MissingExtra, SssdError
from sssd.runtime.selftest import SelfTest, self_test

if TYPE_CHECKING:
    from sssd.model import Model
    from sssd.server.keys import KeyRing


@click.command()
@config_option()
@click.option("--engine", required=True, type=click.Path(path_type=Path), help="Bundle directory, or a file in it.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 is every one.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option("--name", "names", multiple=True, help="Name of the model in requests; may be given several times.")
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
@click.option("--slots", type=int, default=LoopConfig.n_slots, show_default=True, help="Requests that run at once.")
@click.option(
    "--warm-slots", type=int, default=LoopConfig.n_warm, show_default=True, help="Finished prompts kept for reuse."
)
@click.option(
    "--max-waiting", type=int, default=LoopConfig.max_waiting, show_default=True, help="Requests that may wait."
)
@click.option(
    "--max-draft-tokens", type=int, default=LoopConfig.max_draft_tokens, show_default=True, help="Most drafts a step."
)
@click.option("--chunk", type=int, default=LoopConfig.chunk, show_default=True, help="Prompt tokens read in a step.")
@show.DEVICE
@click.option("--threads", type=click.IntRange(min=0), default=0, help="0 takes one a physical core.")
@click.option("--fixed-width", type=int, help="Run every step at exactly this many columns.")
@click.option("--fastest", is_flag=True, help="Allow steps so narrow that the text may differ by rounding.")
@click.option("--api-key-file", type=click.Path(path_type=Path), help="YAML file of the keys that may call.")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="Certificate (PEM), for HTTPS.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="The certificate's private key (PEM).")
@click.option("--cors-origin", "origins", multiple=True, help="Origin whose web pages may call; several, or *.")
@click.option(
    "--max-body-mb",
    type=click.FloatRange(min=0, min_open=True),
    default=8.0,
    show_default=True,
    help="Largest request body.",
)
@click.option(
    "--drain", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Seconds to finish after SIGTERM."
)
@click.option(
    "--log", type=click.Choice(["plain", "json"]), default="plain", show_default=True, help="Form of log lines."
)
@click.option("--check", is_flag=True, help="Load, test the engine in the shapes that serving uses, and exit.")
@click.option("--json", "as_json", is_flag=True, help="With --check: the report as JSON.")
def serve(
    engine: Path,
    host: str,
    port: int,
    names: tuple[str, ...],
    no_spec: bool,
    drafter: DrafterName,
    datastore: Path | None,
    live: Path | None,
    drafts: tuple[Path, ...],
    draft_k: str | None,
    lenience: float | None,
    draft_children: int,
    draft_always: bool,
    slots: int,
    warm_slots: int,
    max_waiting: int,
    max_draft_tokens: int,
    chunk: int,
    device: DeviceName | None,
    threads: int,
    fixed_width: int | None,
    fastest: bool,
    api_key_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    origins: tuple[str, ...],
    max_body_mb: float,
    drain: float,
    log: Literal["plain", "json"],
    check: bool,
    as_json: bool,
) -> None:
    """Serve a bundle over HTTP, to clients of the OpenAI API.

    SIGTERM lets running requests finish and exits. docs/operations.md says more.

    \b
    Examples:
      sssd serve --engine smol/
      sssd serve --engine smol/ --host 0.0.0.0 --port 9000 --slots 8 --name smol
      sssd serve --engine smol/ --datastore chat.store --live answers.live
      sssd serve --engine big/ --draft small/ --draft-k "5,10;10" --lenience 2
      sssd serve --config /etc/sssd/serve.yaml --log json
      sssd serve --engine smol/ --check
    """
    if no_spec and (datastore or live):
        raise click.UsageError("--datastore and --live need speculation: leave --no-spec out")
    if no_spec and drafts:
        raise click.UsageError("--draft needs speculation: leave --no-spec out")
    choice = draft_choice(drafts, draft_k, lenience, draft_children, draft_always)
    if as_json and not check:
        raise click.UsageError("--json needs --check: a server has no output")
    _need_extra()
    from sssd.loading import load_model
    from sssd.server.logs import start_logging
    from sssd.server.run import Operation, run
    from sssd.server.settings import Settings

    start_logging(log)
    settings = Settings(names=names, max_body_bytes=int(max_body_mb * 2**20))
    operation = Operation(drain, tls_cert, tls_key, origins, _keys(api_key_file), datastore)
    config = LoopConfig(
        n_slots=slots,
        n_warm=warm_slots,
        max_waiting=max_waiting,
        chunk=chunk,
        max_draft_tokens=0 if no_spec else max_draft_tokens,
        fixed_width=fixed_width,
        fastest=fastest,
    )
    load = partial(
        load_model,
        engine,
        config,
        drafter="none" if no_spec else drafter,
        datastore=datastore,
        live=live,
        drafts=choice.paths,
        cascade=choice.config,
        device=device,
        threads=threads,
    )
    if check:
        _check(load, config, as_json=as_json)
        return
    with _listen(host, port) as listener:
        scheme = "http" if tls_cert is None else "https"
        show.remark(f"listening on {scheme}://{host}:{listener.getsockname()[1]}")
        run(load, listener, settings, operation)


def _need_extra() -> None:
    """Raises MissingExtra when the server's packages are not installed."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
        import yaml  # noqa: F401
    except ModuleNotFoundError as e:
        raise MissingExtra(e.name or "fastapi", "server") from None


def _keys(path: Path | None) -> KeyRing | None:
    from sssd.server.keys import read_keys, readable_by_others

    if path is None:
        return None
    ring = read_keys(path)
    if readable_by_others(path):
        show.remark(f"{path} can be read by other users: chmod 600 {path}")
    return ring


def _check(load: Callable[[], Model], config: LoopConfig, *, as_json: bool) -> None:
    """Say whether the bundle works here. Raises EngineError when it does not."""
    with closing(load()) as model:
        report = self_test(
            model.engine,
            rows=config.n_slots,
            min_width=model.loop.min_width,
            max_width=max(1 + model.max_draft_tokens, model.loop.min_width),
            chunk=config.chunk if config.fixed_width is None else config.fixed_width,
        )
        problems = [*report.problems, *model.drafter.check()]
        name = model.spec.name
    if as_json:
        show.as_json(report)
    elif not problems:
        click.echo(_verdict(name, report))
    if problems:
        raise EngineError(f"{name} does not work here: {'; '.join(problems)}")


def _verdict(name: str, report: SelfTest) -> str:
    widest = max(report.shapes, key=lambda s: (s.rows, s.width))
    return (
        f"{name} works here: {len(report.shapes)} shapes, prefix copy, same scores twice; "
        f"a step of {widest.rows} rows and {widest.width} columns takes {1000 * widest.seconds:.1f} ms"
    )


def _listen(host: str, port: int) -> socket.socket:
    """The socket to serve on, taken before the model is loaded. Raises SssdError when it is not to be had."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # so that who comes while the server starts waits instead of being refused
    except OSError as e:
        raise SssdError(f"cannot listen on {host}:{port}: {e.strerror}; choose another --host or --port") from None
    return listener
