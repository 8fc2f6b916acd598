"""What a person types. One file per command; each imports what it needs only when it runs."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import Annotated, Any

import typer

from bridge import __version__
from bridge.errors import BridgeError, UsageError
from bridge.logs import set_up

CLICK_ERROR: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
"""The base of all errors of the command line; typer brings it along under changing names."""

COMMANDS = {
    "serve": None,
    "exec": None,
    "record": None,
    "replay": None,
    "auth": "The login of Codex: its status, and how to get one.",
    "cap": "The Coreason Agent Protocol: ask in it, check its messages.",
    "keys": "The keys of clients: make one, list them, take one away.",
    "lab": "Test prompts that teach a model to call tools.",
    "log": "Look at event logs: list, show, follow, count, compare.",
    "app-server": None,
    "doctor": None,
    "models": None,
    "usage": None,
}
"""Each with a module of its name here. What a group of commands is for; a single command says it itself."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"codex-bridge {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def build_app(arguments: list[str]) -> typer.Typer:
    """The command line, as far as these arguments need it: one command where they name one, else all of them.

    A process that serves for weeks keeps what it was started with in memory.
    """
    app = typer.Typer(
        name="codex-bridge",
        help="Let any OpenAI client talk to a Codex app-server, as if it were a model API.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in arguments[:1] if arguments[:1] and arguments[0] in COMMANDS else COMMANDS:
        module = import_module(f"bridge.cli.{name.replace('-', '_')}")
        if COMMANDS[name] is not None:
            app.add_typer(module.app, name=name, help=COMMANDS[name])
        else:
            app.command(name, context_settings=getattr(module, "CONTEXT", None))(module.command)
    return app


def main() -> None:
    """The command's entry point. What goes wrong is one line on stderr and an exit code, never a traceback.

    `exec --json` tells it as a line of stdout too, also when it was typed wrong.
    """
    hold_standard_streams()
    if sys.argv[1:2] == ["exec"] or sys.argv[1:3] == ["cap", "run"]:
        from bridge.cli.exec import STOPPING

        # A run answers signals in its own way; until it listens they wait.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    set_up()
    try:
        code = build_app(sys.argv[1:])(prog_name="codex-bridge", standalone_mode=False)
    except BridgeError as error:
        code = _report(error)
    except CLICK_ERROR as error:
        if "NoArgs" in type(error).__name__:
            error.show()
            code = error.exit_code
        else:
            said = error.format_message()
            code = _report(UsageError(f"{said}{'' if said.endswith(('.', '?')) else '.'} {_see_help(error)}"))
    except (KeyboardInterrupt, typer.Abort):
        code = _interrupted()
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is None:
            raise
        code = _interrupted()
    raise SystemExit(code)


def hold_standard_streams() -> None:
    """A closed stdin, stdout or stderr must not become another file: what is written there would land in it."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The wrong way round: to read from a closed stdin, or to write to a closed stdout, stays the error that it
            # is. The lowest free number is given out.
            os.open(os.devnull, os.O_RDONLY if number else os.O_WRONLY)


def _report(error: BridgeError) -> int:
    from bridge.cli.streams import say

    arguments = sys.argv[1:]
    if arguments[:1] == ["exec"]:
        from bridge.cli.exec.run import report

        return report(error, json="--json" in arguments)
    for line in error.message.splitlines():
        say("error", line)
    return 2


def _interrupted() -> int:
    _report(BridgeError("Interrupted.", code="interrupted"))
    return 130


def _see_help(error: Any) -> str:
    path = error.ctx.command_path if getattr(error, "ctx", None) else "codex-bridge"
    return f"`{path} --help` lists what there is."
