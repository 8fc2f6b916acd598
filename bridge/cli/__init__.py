"""What a person types. One file per command; each imports what it needs only when it runs."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from bridge import __version__
from bridge.cli import app_server, doctor, serve, usage
from bridge.errors import BridgeError

app = typer.Typer(
    name="codex-bridge",
    help="Let any OpenAI client talk to a Codex app-server, as if it were a model API.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"codex-bridge {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.command("serve")(serve.command)
app.command("app-server")(app_server.command)
app.command("doctor")(doctor.command)
app.command("usage")(usage.command)


def main() -> None:
    """The command's entry point. An error that we know is one line on stderr and exit code 2, never a traceback."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        app()
    except BridgeError as error:
        for line in error.message.splitlines():
            typer.echo(f"error: {line}", err=True)
        raise SystemExit(2) from None
