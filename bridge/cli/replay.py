"""`codex-bridge replay`: recorded requests, answered again from what their backends said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.cli.log.options import LogPath, filtered

if TYPE_CHECKING:
    from bridge.cli.log.terminal import Screen
    from bridge.protolog.compare import Comparison
    from bridge.protolog.filters import Filters
    from bridge.protolog.log import Log
    from bridge.protolog.recording import Recording


@filtered
def command(
    log: LogPath,
    filters: Filters,
    as_: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="PROTOCOL", help="responses, chat, wire, cap or text; else as each was answered then."
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare with what the clients got then; exit code 1 where it differs.")
    ] = False,
    update: Annotated[
        bool, typer.Option("--update", help="With --verify: put what they get now into the log. Exit code 0.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="With --verify: tell of every request.")] = False,
) -> None:
    """Feed what was recorded of a backend through the code of today, and print what the client would get.

    Nothing is started and nobody is asked. Ids and times are those of the log. With --verify every byte is compared.
    """
    from bridge.errors import UsageError
    from bridge.server.translating import PROTOCOLS

    if as_ is not None and as_ not in PROTOCOLS:
        raise UsageError(f"--as {as_[:40]}: choose one of {', '.join(PROTOCOLS)}.")
    if as_ is not None and verify:
        raise UsageError("--verify compares with what was sent then; it does not go with --as.")
    if update and not verify:
        raise UsageError("--update goes with --verify.")

    from bridge.cli.log.options import open_log, tell_trouble
    from bridge.cli.log.terminal import printing

    keep_quiet()
    with printing() as screen:
        opened = open_log(log, screen, no_index=True)
        if verify:
            code = run_verify(opened, filters, screen, update=update, verbose=verbose)
        else:
            code = _print(opened, filters, as_)
        tell_trouble(opened.trouble, screen)
    raise typer.Exit(code)


def keep_quiet() -> None:
    """What the code of today cannot read shows as a difference; the traceback would be of a hostile log."""
    import logging

    logging.getLogger("bridge.server").setLevel(logging.CRITICAL)


def recordings(log: Log, filters: Filters) -> Iterator[Recording]:
    """The requests that fit, whole, in the order in which they ended. Raises UsageError when there is none."""
    from bridge.cli.log.options import chosen
    from bridge.errors import UsageError
    from bridge.protolog.read import RecordReader, Trouble
    from bridge.protolog.recording import read_recordings

    wanted = None if filters.are_none else {summary.id for summary in chosen(log, filters)}
    found = False
    log.trouble = Trouble()  # what the filters have seen of it is seen again now
    for recording in read_recordings(RecordReader(log.files, log.trouble)):
        if wanted is None or recording.id in wanted:
            found = True
            yield recording
    if not found:
        raise UsageError(f"{log.path} holds no request{'' if filters.are_none else ' that fits'}.")


def run_verify(log: Log, filters: Filters, screen: Screen, *, update: bool, verbose: bool) -> int:
    """Compare all, tell what differs; the exit code."""
    import trio

    from bridge.protolog.update import update_log
    from bridge.server.replaying import Stage

    counts: Counter[str] = Counter()
    changed: list[tuple[Recording, Recording]] = []

    async def compare_all() -> None:
        stage = Stage()
        for recording in recordings(log, filters):
            found = await stage.play(recording)
            counts[found.outcome] += 1
            if found.outcome == "different" and found.now is not None:
                changed.append((recording, found.now))
            if verbose or found.outcome == "different":
                _tell(found, screen)

    trio.run(compare_all)
    compared = counts["same"] + counts["different"]
    told = {"same": "the same", "different": "different", "not_played": "not played"}
    screen.line(f"{counts.total()} request(s): " + ", ".join(f"{counts[name]} {text}" for name, text in told.items()))
    if counts["not_played"] and not verbose:
        screen.line("-v tells why those were not played.")
    if update and changed:
        update_log(log.files, changed)
        counts["different"] -= len(changed)
        screen.line(f"{log.path} now holds what the clients get today.")
    if not compared:
        from bridge.cli.streams import say

        screen.flush()
        say("error", "nothing was compared: none of them can be played")
        return 1
    return int(counts["different"] > 0)


def _tell(found: Comparison, screen: Screen) -> None:
    from bridge.cli.log.terminal import printable

    recording = found.recording
    model = (recording.start or {}).get("requested_model") or "-"
    colour = {"same": "green", "different": "red"}.get(found.outcome, "yellow")
    word = screen.style(found.outcome.replace("_", " "), colour)
    screen.line(f"{word}  {printable(recording.id)}  {printable(recording.path)}  {printable(str(model))}")
    for line in found.lines:
        style = ("red",) if line.startswith("-") else ("green",) if line.startswith("+") else ()
        screen.line("    " + screen.style(printable(line), *style))


def _print(log: Log, filters: Filters, protocol: str | None) -> int:
    """Write what each client would get to stdout, as it would get it; a comment before each names the request."""
    import sys

    import trio

    from bridge.cli.streams import say
    from bridge.errors import BridgeError
    from bridge.server.replaying import Stage
    from bridge.server.translating import PROTOCOLS, translate

    failed = False

    async def play_all() -> None:
        nonlocal failed
        stage = Stage()
        for recording in recordings(log, filters):
            # A transcript has no client whose protocol it could be.
            wanted = protocol or (None if recording.client else "responses")
            known = next((name for name in PROTOCOLS if name == wanted), None)
            try:
                if known is not None:
                    out = await translate(recording, known)
                else:
                    found = await stage.play(recording)
                    if found.now is None:
                        say("note", f"{recording.id}: {' '.join(found.lines)}")
                        continue
                    out = found.now.sent
            except BridgeError as error:
                say("error", f"{recording.id}: {error.message}")
                failed = True
                continue
            if known not in ("text", "wire", "cap"):
                sys.stdout.buffer.write(f": {recording.id} {recording.path}\n\n".encode("utf-8", "replace"))
            sys.stdout.buffer.write(out if out.endswith(b"\n") else out + b"\n")

    trio.run(play_all)
    sys.stdout.buffer.flush()
    return int(failed)
