"""`turnbridge serve`: the proxy."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.cli.flags import Flags, setting_flags

if TYPE_CHECKING:
    from bridge.redact import Redactor
    from bridge.settings import Settings
    from bridge.settings.file import FileConfig


@setting_flags(grouped=True)
def command(
    flags: Flags,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Check the flags, the environment and the configuration file, then exit.",
            rich_help_panel="General",
        ),
    ] = False,
) -> Callable[[], int] | None:
    """Serve OpenAI's, Anthropic's and Google's APIs in front of a Codex app-server.

    Serves /v1/responses, /v1/chat/completions, /v1/messages, /v1beta/models and /v1/models.

    Every flag can also be set in the environment, under the name in brackets, or in the configuration file;
    docs/settings.md lists all settings. Stop with Ctrl-C: running turns get 20 seconds to finish, a second Ctrl-C stops
    at once.
    """
    from bridge.errors import UsageError
    from bridge.logs import set_up
    from bridge.settings import SETTINGS, unknown_variables
    from bridge.settings.file import load_configuration

    settings, file = load_configuration(**flags)
    if settings.replay is None:
        for name in ("on_miss", "speed", "ignore"):
            if flags[name] is not None:
                raise UsageError(f"{SETTINGS[name].flags[0]} requires --replay.")
    log = logging.getLogger("bridge")
    redactor = set_up(settings.log_format, settings.log_level, settings.api_keys)
    for name in unknown_variables():
        log.warning("unknown setting %s is ignored", name)
    if check:
        return None
    return partial(run, settings, file, redactor)


def run(settings: Settings, file: FileConfig, redactor: Redactor) -> int:
    """Serve until a signal. Returns the exit code."""
    import trio

    from bridge.errors import LogFailed
    from bridge.server.run import serve
    from bridge.terminal import say

    try:
        trio.run(serve, settings, file, announce, redactor)
    except LogFailed as error:
        say("error", f"{error.message} Use --log-on-error drop to continue without the log.")
        return 1
    return 0


def announce(line: str) -> None:
    """Write a line to stdout. The bridge keeps running when the reader has gone (`| head -1`)."""
    try:
        typer.echo(line)
    except BrokenPipeError:
        # Python would report what is left in the buffer at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
