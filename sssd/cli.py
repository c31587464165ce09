"""The command line: the group, and how errors look. Each command is a public function with options; no logic here.

stdout carries data, stderr carries talk.
"""

from __future__ import annotations

from typing import Any

import click

from sssd import __version__
from sssd.commands import bench, bundle, calibrate, datastore, doctor, generate, overhead, replay, serve, simulate
from sssd.errors import SssdError


class _Group(click.Group):
    """Turns a user's mistake into one line and an exit status, never a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SssdError as e:
            raise click.ClickException(str(e)) from e
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(130)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self.commands[name].get_short_help_str(200)) for name in self.commands]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="sssd")
def main() -> None:
    """Export language models and run them faster, losslessly, with training-free speculative decoding.

    \b
    Examples:
      sssd export smollm2.gguf --out smol/
      sssd generate --engine smol/ "Write a haiku about trains."
    """


for command in (
    bundle.export,
    bundle.inspect,
    bundle.check,
    generate.generate,
    bench.bench,
    calibrate.calibrate,
    calibrate.plan,
    datastore.datastore,
    replay.replay,
    overhead.overhead,
    serve.serve,
    simulate.simulate,
    doctor.doctor,
):
    main.add_command(command)
