"""`turnbridge record -- COMMAND…`: a bridge for one command, and the log of all that happens in it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

from bridge.cli.flags import Flags, setting_flags

CONTEXT = {"allow_interspersed_args": False}
"""Options after the command belong to the command."""


@setting_flags(["mock_only", "codex_bin", "codex_home", "dialect", "tool_mode", "native_tools", "config"])
def command(
    argv: Annotated[list[str], typer.Argument(metavar="COMMAND…", help="What to run, with its arguments.")],
    log_events: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|FILE",
            help="Append to this file, or create one in this directory (one that exists, or ends in /). "
            "[./turnbridge-TIME.ndjson]",
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print more on stderr.")] = False,
    *,
    flags: Flags,
) -> None:
    """Run a command with a bridge of its own, and keep a log of all its requests and their answers.

    The command gets OPENAI_BASE_URL and OPENAI_API_KEY; stdin, stdout, stderr and signals are its own. The bridge
    listens on this machine only, with a key for this run, and ends with the command.

    The exit code is the command's (126 and 127: it cannot be run; 128 and more: a signal ended it). If the log cannot
    be written, the command is stopped and the exit code is 1, so that nothing happens unrecorded. The exit code is
    also 1 if the log was deleted during the run.
    """
    import trio

    from bridge.replay.record import CannotRun, check_program, record
    from bridge.settings.file import load_configuration
    from bridge.terminal import say

    # One complete log for one run.
    log_settings: Flags = {"log_max_bytes": 0, "log_max_age": 0, "log_keep": 0, "log_on_error": "stop"}
    settings, file = load_configuration(host="127.0.0.1", port=0, **log_settings, **flags)
    if verbose:
        logging.getLogger("bridge").setLevel(logging.DEBUG)
    try:
        check_program(argv[0])
    except CannotRun as error:
        say("error", error.message)
        raise typer.Exit(error.exit_code) from None
    with _log_at(log_events) as target:
        code = trio.run(record, settings.model_copy(update={"log_events": target}), file, argv)
    raise typer.Exit(code)


@contextmanager
def _log_at(target: str | None) -> Iterator[str]:
    """The given path, else a new file in the current directory, which is removed if nothing is written to it."""
    from bridge.errors import ConfigError
    from bridge.log.rotation import FileNames, reserve

    if target is not None:
        yield target
        return
    # The Z in the name protects it from `serve`, which deletes old logs of its own.
    names = FileNames(lambda stamp, later: f"turnbridge-{stamp}Z{later}.ndjson")
    try:
        path = reserve(Path(), names)
    except OSError as error:
        raise ConfigError(f"The event log cannot be written here: {error.strerror}. Use --log-events.") from None
    try:
        yield str(path)
    finally:
        with suppress(FileNotFoundError):
            if not path.stat().st_size:
                path.unlink()
