"""The command line. A command is a module that is imported when it is used, and imports what it needs when it runs."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from bridge import __version__
from bridge.errors import BridgeError, UsageError
from bridge.logs import set_up

CLICK_ERROR: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
"""The base of all errors of the command line; typer ships it under changing names."""

COMMANDS = {
    "serve": "Serve model APIs in front of a Codex app-server.",
    "exec": "Run one prompt and print the answer or its events.",
    "record": "Run a command with a bridge of its own and record it.",
    "replay": "Replay recordings with today's code, and compare.",
    "app-server": "Simulate a Codex app-server, without Codex or an account.",
    "doctor": "Check the installation and say what to fix.",
    "models": "List the models that requests can name, and their backends.",
    "usage": "Show the tokens used, by day, key and model.",
    "store": "Manage the store of responses: check, migrate, copy.",
    "auth": "Show Codex's login, or log in.",
    "cap": "Use the Coreason Agent Protocol: send requests, check messages.",
    "keys": "Manage the keys of clients: add, list, revoke.",
    "lab": "Test prompts that teach a model to call tools.",
    "log": "Inspect event logs: list, show, follow, count, compare.",
}
"""The commands and their short help, in the order in which --help lists them."""

_DEFINED_IN = {
    "serve": "bridge.cli.serve:serve",
    "exec": "bridge.cli.exec:command",
    "record": "bridge.replay.commands:record",
    "replay": "bridge.replay.commands:replay",
    "app-server": "bridge.cli.serve:app_server",
    "doctor": "bridge.cli.installation:doctor",
    "models": "bridge.cli.installation:models",
    "usage": "bridge.cli.clients:usage",
    "auth": "bridge.cli.installation:auth",
    "cap": "bridge.cap.commands:app",
    "keys": "bridge.cli.clients:keys",
    "store": "bridge.cli.store:app",
    "lab": "bridge.lab.commands:app",
    "log": "bridge.log.commands:app",
}
"""The module of each command, and the function or the group of commands in it."""


_TYPE = re.compile(r" <(?:list\[)?(int|float|path|str)\b[^<>]*>")
_VALUES = {"int": "N", "float": "NUMBER", "path": "FILE", "str": "TEXT"}


def help_row(param: Any, ctx: Any) -> tuple[str, str] | None:
    """The names and the help of an option or argument; None for a hidden one.

    typer appends the Python type (`<list[str]>`) where a reader expects the kind of value, and to an argument that
    already has a name. It also names a flag twice that has no opposite.
    """
    if (row := param.get_help_record(ctx)) is None:
        return None
    is_argument = param.param_type_name == "argument"
    names = _TYPE.sub(lambda found: "" if is_argument else f" {_VALUES[found[1]]}", row[0])
    return ", ".join(dict.fromkeys(names.split(", "))), row[1]


class Command(TyperCommand):
    """A command whose options are listed in groups (`rich_help_panel`), without loading rich."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage line as Unix writes it: a required argument without typer's braces, `…` for several."""
        pieces = [re.sub(r"^\{(.*)\}(\.\.\.)?$", r"\1\2", piece) for piece in super().collect_usage_pieces(ctx)]
        return [piece.removesuffix("...") if piece.endswith("…...") else piece for piece in pieces]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for param in self.get_params(ctx):
            if (row := help_row(param, ctx)) is not None:
                title = "Arguments" if param.param_type_name == "argument" else "Options"
                panels.setdefault(getattr(param, "rich_help_panel", None) or title, []).append(row)
        for title, rows in panels.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class Group(TyperGroup):
    """A group that lists the first sentence of each command's help in full, where typer would cut it."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.short_help_of(ctx, name)) for name in self.list_commands(ctx)])

    def short_help_of(self, ctx: Any, name: str) -> str:
        command: Any = self.get_command(ctx, name)
        return str(command.get_short_help_str(limit=1000))


class _Commands(Group):
    """All commands. Only the one that is used is imported: a process that serves for weeks keeps what it has loaded."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]  # their names, for typer's suggestions

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def short_help_of(self, ctx: Any, name: str) -> str:
        return COMMANDS[name]


def load_command(name: str) -> Any:
    """A command or group of commands, imported now."""
    where, _, attribute = _DEFINED_IN[name].partition(":")
    module = import_module(where)
    defined = getattr(module, attribute)
    if isinstance(defined, typer.Typer):
        defined.info.cls = Group
        for command in defined.registered_commands:
            command.cls = Command
        found: Any = get_group(defined)
        found.help = COMMANDS[name]
    else:
        single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        single.command(name, cls=Command, context_settings=getattr(module, f"{attribute.upper()}_CONTEXT", None))(
            defined
        )
        found = get_command(single)
    found.name, found.short_help = name, COMMANDS[name]
    return found


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"turnbridge {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def build_app(*, completion: bool = True) -> typer.Typer:
    """The command line. `completion` adds the flags that install shell completion; a server does not need them."""
    app = typer.Typer(
        name="turnbridge",
        cls=_Commands,
        help="Let clients of OpenAI's, Anthropic's and Google's APIs talk to a Codex app-server as if it were a model.",
        no_args_is_help=True,
        add_completion=completion,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    return app


def main() -> None:
    """The entry point. An error is one line on stderr and an exit code, never a traceback.

    `exec --json` also writes it to stdout as an event, even when the command line is invalid.
    """
    hold_standard_streams()
    if sys.argv[1:2] == ["serve"]:
        # Looking for plugins, pydantic reads the metadata of every installed package: 1 MB that a server would keep.
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
        # Nearly all that is loaded stays: collecting it again and again while it grows took a tenth of the start.
        # What dies old, as connections do, is found after some two million more objects.
        gc.set_threshold(20_000, 10, 10)
    if sys.argv[1:2] == ["exec"] or sys.argv[1:3] == ["cap", "run"]:
        from bridge.cli.exec import STOPPING

        # A run handles signals itself; they are held back until it listens.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    set_up()
    try:
        named = sys.argv[1:] and sys.argv[1] in COMMANDS
        code = build_app(completion=not named)(prog_name="turnbridge", standalone_mode=False)
        if callable(code):
            # A server keeps none of the command line's own objects, which take a megabyte.
            gc.collect()
            code = code()
    except BridgeError as error:
        code = _report(error)
    except CLICK_ERROR as error:
        if "NoArgs" in type(error).__name__:
            error.show()
            code = error.exit_code
        else:
            message = error.format_message()
            code = _report(UsageError(f"{message}{'' if message.endswith(('.', '?')) else '.'} {_see_help(error)}"))
    except (KeyboardInterrupt, typer.Abort):
        code = _interrupted()
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is None:
            raise
        code = _interrupted()
    raise SystemExit(code)


def hold_standard_streams() -> None:
    """Keep the descriptors 0 to 2 taken: the next file opened would get the number of a closed one, and its output."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # Opened the wrong way round, so that reading a closed stdin or writing to a closed stdout stays an error.
            # The system gives out the lowest free number.
            os.open(os.devnull, os.O_RDONLY if number else os.O_WRONLY)


def _report(error: BridgeError) -> int:
    from bridge.terminal import say

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
    path = error.ctx.command_path if getattr(error, "ctx", None) else "turnbridge"
    return f"See `{path} --help`."
