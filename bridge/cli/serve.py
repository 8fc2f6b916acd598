"""`turnbridge serve`, the proxy; and `turnbridge app-server`, the stand-in for Codex or a recorded one."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from bridge.cli.flags import Flags, check_choice, setting_flags

if TYPE_CHECKING:
    from bridge.redact import Redactor
    from bridge.settings import Settings
    from bridge.settings.file import FileConfig


@setting_flags(grouped=True)
def serve(
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
    from bridge.server.run import serve as serve_all
    from bridge.terminal import say

    try:
        trio.run(serve_all, settings, file, announce, redactor)
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


def app_server(
    mode: Annotated[
        str,
        typer.Option(metavar="[echo|text|tool-call|tool-loop]", help="What to answer; a mock-* model overrides it."),
    ] = "echo",
    script: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Perform this JSON script of turns and faults (docs/standin.md)."),
    ] = None,
    dialect: Annotated[str, typer.Option(metavar="[both|current|legacy]", help="Methods to offer.")] = "both",
    replay: Annotated[
        Path | None,
        typer.Option(
            metavar="LOG", help="Play the app-server of this event log: a file, a directory or a JSON-RPC transcript."
        ),
    ] = None,
    speed: Annotated[
        float, typer.Option(metavar="FACTOR", help="With --replay: 1 as recorded, 2 twice as fast, 0 without delays.")
    ] = 0.0,
    on_miss: Annotated[
        str,
        typer.Option(
            metavar="[error|nearest]",
            help="With --replay, the answer to a turn that was not recorded: an error, or the most similar one.",
        ),
    ] = "error",
    config: Annotated[
        list[str] | None, typer.Option("-c", "--config", metavar="KEY=VALUE", help="Accepted and ignored.")
    ] = None,
) -> None:
    """Simulate a Codex app-server, without Codex or an account.

    Speaks the protocol (JSON-RPC, one message per line) over stdin and stdout. It answers the mock models of `serve`,
    and replaces Codex in tests. To use it instead of Codex, point CODEX_BIN at a program that runs this.
    """
    from bridge.appserver.standin import MODES, parse_script
    from bridge.errors import ConfigError, UsageError

    check_choice("--mode", mode, MODES)
    check_choice("--dialect", dialect, ("both", "current", "legacy"))
    check_choice("--on-miss", on_miss, ("error", "nearest"))
    if replay is not None:
        if script is not None:
            raise UsageError("Use either --replay or --script, not both.")
        _replay(replay, speed, on_miss)
        return
    try:
        parsed = parse_script(script.read_bytes()) if script else None
    except OSError as error:
        raise ConfigError(f"--script {script} cannot be read: {error.strerror}.") from error

    import trio

    from bridge.appserver.standin.server import Standin, StandinDialect

    async def run() -> None:
        await Standin(mode=mode, dialect=cast("StandinDialect", dialect), script=parsed).run()

    trio.run(run)


def _replay(path: Path, speed: float, on_miss: str) -> None:
    from bridge.errors import ConfigError, UsageError

    if not (speed >= 0 and math.isfinite(speed)):
        raise UsageError(f"Invalid --speed {speed:g}. Use a number, 0 or more.")

    from bridge.log.child_side import read_child
    from bridge.log.read import RecordReader, played_files
    from bridge.terminal import say

    reader = RecordReader(played_files(path))
    child = read_child(reader)
    for sentence in reader.trouble.sentences():
        say("warning", sentence)
    if not child.threads:
        raise ConfigError(f"{path} contains no turn of an app-server to replay.")

    import trio

    from bridge.appserver.standin.replay import OnMiss, ReplayServer

    async def run() -> None:
        await ReplayServer(child, speed=speed, on_miss=cast("OnMiss", on_miss)).run()

    trio.run(run)
