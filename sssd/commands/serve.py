"""serve: the OpenAI-compatible server."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path
from typing import get_args

import click

from sssd.commands import show
from sssd.commands.draft_options import draft_choice, draft_options
from sssd.config import LoopConfig
from sssd.drafting.choose import DrafterName
from sssd.engines.choose import DeviceName
from sssd.errors import MissingExtra, SssdError


@click.command()
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
) -> None:
    """Serve a bundle over HTTP, to clients of the OpenAI API.

    \b
    Examples:
      sssd serve --engine smol/
      sssd serve --engine smol/ --host 0.0.0.0 --port 9000 --slots 8 --name smol
      sssd serve --engine smol/ --datastore chat.store --live answers.live
      sssd serve --engine big/ --draft small/ --draft-k "5,10;10" --lenience 2
    """
    if no_spec and (datastore or live):
        raise click.UsageError("--datastore and --live need speculation: leave --no-spec out")
    if no_spec and drafts:
        raise click.UsageError("--draft needs speculation: leave --no-spec out")
    choice = draft_choice(drafts, draft_k, lenience, draft_children, draft_always)
    try:
        import uvicorn

        from sssd.server.app import make_app
    except ModuleNotFoundError as e:
        raise MissingExtra(e.name or "fastapi", "server") from None
    from sssd.loading import load_model
    from sssd.server.serving import Serving
    from sssd.server.settings import Settings

    settings = Settings(names=names)
    config = LoopConfig(
        n_slots=slots,
        n_warm=warm_slots,
        max_waiting=max_waiting,
        chunk=chunk,
        max_draft_tokens=0 if no_spec else max_draft_tokens,
        fixed_width=fixed_width,
        fastest=fastest,
    )
    with _listen(host, port) as listener:
        model = load_model(
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
        with closing(Serving(model)) as serving:
            app = make_app(serving, settings)
            show.remark(f"serving {app.state.names[0]} on http://{host}:{listener.getsockname()[1]}")
            server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
            server.run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    """The socket to serve on, taken before the model is loaded. Raises SssdError when it is not to be had."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as e:
        raise SssdError(f"cannot listen on {host}:{port}: {e.strerror}; choose another --host or --port") from None
    return listener
