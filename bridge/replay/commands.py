"""`turnbridge replay` answers recorded requests again; `turnbridge record` keeps the log of a command with a bridge."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.cli.flags import Flags, check_choice, setting_flags
from bridge.log.commands import Filters, LogPath, filtered

if TYPE_CHECKING:
    from bridge.log.recording import Recording
    from bridge.replay.compare import Comparison
    from bridge.terminal import Screen


# `replay`: what recorded requests would get now, from what their backends sent


@filtered
def replay(
    log: LogPath,
    as_: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="PROTOCOL",
            help="Print responses, chat, messages, gemini, wire, cap or text instead of each client's own protocol.",
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare with the recorded answers. Exit code 1 if any differs.")
    ] = False,
    update: Annotated[
        bool, typer.Option("--update", help="With --verify: put the new answers into the log. Exit code 0.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="With --verify: report every request.")] = False,
    *,
    filters: Filters,
) -> None:
    """Pass recorded backend output through the current code, and print what each client would get.

    Nothing is started and no model is called. Ids and times are those of the log. --verify compares every byte.
    """
    from bridge.errors import UsageError
    from bridge.replay.verify import PROTOCOLS

    check_choice("--as", as_, PROTOCOLS)
    if as_ is not None and verify:
        raise UsageError("--verify compares in the recorded protocol. Use it without --as.")
    if update and not verify:
        raise UsageError("--update requires --verify.")
    if verify:
        run_verify(log, filters, update=update, verbose=verbose)
    else:
        _print(log, filters, as_)


def run_verify(log: Path, filters: Filters, *, update: bool, verbose: bool) -> None:
    """Compare every answer and report differences. Exits with 1 if there are any, or nothing was compared."""
    import trio

    from bridge.log.read import log_files
    from bridge.replay.compare import update_log
    from bridge.replay.verify import Verifier
    from bridge.terminal import printing, say

    counts: Counter[str] = Counter()
    changed: list[tuple[Recording, Recording]] = []
    with printing() as screen:
        verifier = Verifier()
        for recording in _recordings(log, filters, screen):
            found = trio.run(verifier.verify, recording)
            counts[found.outcome] += 1
            if found.outcome == "different" and found.now is not None:
                changed.append((recording, found.now))
            if verbose or found.outcome == "different":
                _show(found, screen)
        words = {"same": "the same", "different": "different", "not_played": "not played"}
        screen.line(
            f"{counts.total()} request(s): " + ", ".join(f"{counts[name]} {word}" for name, word in words.items())
        )
        if counts["not_played"] and not verbose:
            screen.line("Use -v to see why some were not played.")
        nothing = not counts["same"] + counts["different"]
        if nothing:
            screen.flush()
            say("error", "nothing was compared: none of the requests can be played")
        elif update and changed:
            update_log(log_files(log), changed)
            counts["different"] -= len(changed)
            screen.line(f"{log} now contains the answers of the current code.")
    raise typer.Exit(int(nothing or counts["different"] > 0))


def _recordings(log: Path, filters: Filters, screen: Screen) -> Iterator[Recording]:
    """The matching requests in the order in which they ended. Raises UsageError when there is none."""
    import logging

    from bridge.errors import UsageError
    from bridge.log.commands.requests import MatchingRecordings, report

    # What the code cannot read appears as a difference. A traceback would only show that a log is hostile.
    logging.getLogger("bridge.server").setLevel(logging.CRITICAL)
    matching = MatchingRecordings(log, filters, screen)
    yield from matching
    if not matching.count:
        raise UsageError(f"{log} contains no request{'' if filters.are_none else ' that matches'}.")
    report(screen, matching.reader.trouble)


def _show(found: Comparison, screen: Screen) -> None:
    from bridge.terminal import escape_block as printable

    recording = found.recording
    model = (recording.start or {}).get("requested_model") or "-"
    colour = {"same": "green", "different": "red"}.get(found.outcome, "yellow")
    word = screen.style(found.outcome.replace("_", " "), colour)
    screen.line(f"{word}  {printable(recording.id)}  {printable(recording.path)}  {printable(str(model))}")
    for line in found.lines:
        style = ("red",) if line.startswith("-") else ("green",) if line.startswith("+") else ()
        screen.line("    " + screen.style(printable(line), *style))


def _print(log: Path, filters: Filters, wanted: str | None) -> None:
    """Write what each client would get to stdout, after a comment that names the request."""
    import trio

    from bridge.errors import BridgeError
    from bridge.replay.verify import Verifier, translate
    from bridge.terminal import printing, say

    verifier, code = Verifier(), 0
    with printing() as screen:
        for recording in _recordings(log, filters, screen):
            # A transcript has no client whose protocol it could be.
            protocol = wanted or (None if recording.client else "responses")
            try:
                if protocol is not None:
                    out = trio.run(translate, recording, protocol)
                else:
                    found = trio.run(verifier.verify, recording)
                    if found.now is None:
                        say("note", f"{recording.id}: {' '.join(found.lines)}")
                        continue
                    out = found.now.sent
            except BridgeError as error:
                say("error", f"{recording.id}: {error.message}")
                code = 1
                continue
            if protocol not in ("text", "wire", "cap"):
                screen.write(f": {recording.id} {recording.path}\n\n".encode("utf-8", "replace"))
            screen.write(out if out.endswith(b"\n") else out + b"\n")
    raise typer.Exit(code)


# `record -- COMMAND…`: a bridge for one command, and the log of all that happens in it

RECORD_CONTEXT = {"allow_interspersed_args": False}
"""Options after the command belong to the command."""


@setting_flags(["mock_only", "codex_bin", "codex_home", "dialect", "tool_mode", "native_tools", "config"])
def record(
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

    from bridge.replay.record import CannotRun, check_program, record_command
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
        code = trio.run(record_command, settings.model_copy(update={"log_events": target}), file, argv)
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
