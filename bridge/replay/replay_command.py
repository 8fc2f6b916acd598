"""`turnbridge replay`: answer recorded requests again from what their backends sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.log.commands.options import LogPath, filtered

if TYPE_CHECKING:
    from bridge.log.commands.terminal import Screen
    from bridge.log.filters import Filters
    from bridge.log.log import Log
    from bridge.log.recording import Recording
    from bridge.replay.compare import Comparison
    from bridge.replay.verify import Verifier


@filtered
def command(
    log: LogPath,
    filters: Filters,
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
) -> None:
    """Pass recorded backend output through the current code, and print what each client would get.

    Nothing is started and no model is called. Ids and times are those of the log. --verify compares every byte.
    """
    from bridge.errors import UsageError
    from bridge.log.commands.options import open_log, report_trouble
    from bridge.log.commands.terminal import printing
    from bridge.replay.verify import PROTOCOLS

    if as_ is not None and as_ not in PROTOCOLS:
        raise UsageError(f"Invalid --as {as_[:40]!r}. Choose one of {', '.join(PROTOCOLS)}.")
    if as_ is not None and verify:
        raise UsageError("--verify compares in the recorded protocol. Use it without --as.")
    if update and not verify:
        raise UsageError("--update requires --verify.")
    with printing() as screen:
        opened = open_log(log, screen, no_index=True)
        if verify:
            code = run_verify(opened, filters, screen, update=update, verbose=verbose)
        else:
            code = _print(opened, filters, as_)
        report_trouble(opened.trouble, screen)
    raise typer.Exit(code)


def _for_each(log: Log, filters: Filters, handle: Callable[[Verifier, Recording], Awaitable[None]]) -> None:
    """Handle the matching requests in the order in which they ended. Raises UsageError when there is none."""
    import logging

    import trio

    from bridge.errors import UsageError
    from bridge.log.commands.options import chosen
    from bridge.log.read import RecordReader, Trouble
    from bridge.log.recording import read_recordings
    from bridge.replay.verify import Verifier

    # What the code cannot read appears as a difference. A traceback would only show that a log is hostile.
    logging.getLogger("bridge.server").setLevel(logging.CRITICAL)
    wanted = None if filters.are_none else {summary.id for summary in chosen(log, filters)}
    log.trouble = Trouble()  # the filters have read the log once; count its damaged lines only once

    async def play() -> bool:
        verifier, found = Verifier(), False
        for recording in read_recordings(RecordReader(log.files, log.trouble)):
            if wanted is None or recording.id in wanted:
                found = True
                await handle(verifier, recording)
        return found

    if not trio.run(play):
        raise UsageError(f"{log.path} contains no request{'' if filters.are_none else ' that matches'}.")


def run_verify(log: Log, filters: Filters, screen: Screen, *, update: bool, verbose: bool) -> int:
    """Compare every answer and report differences; the exit code."""
    from bridge.replay.compare import update_log
    from bridge.terminal import say

    counts: Counter[str] = Counter()
    changed: list[tuple[Recording, Recording]] = []

    async def compare(verifier: Verifier, recording: Recording) -> None:
        found = await verifier.verify(recording)
        counts[found.outcome] += 1
        if found.outcome == "different" and found.now is not None:
            changed.append((recording, found.now))
        if verbose or found.outcome == "different":
            _show(found, screen)

    _for_each(log, filters, compare)
    labels = {"same": "the same", "different": "different", "not_played": "not played"}
    screen.line(f"{counts.total()} request(s): " + ", ".join(f"{counts[name]} {text}" for name, text in labels.items()))
    if counts["not_played"] and not verbose:
        screen.line("Use -v to see why some were not played.")
    if not counts["same"] + counts["different"]:
        screen.flush()
        say("error", "nothing was compared: none of the requests can be played")
        return 1
    if update and changed:
        update_log(log.files, changed)
        counts["different"] -= len(changed)
        screen.line(f"{log.path} now contains the answers of the current code.")
    return int(counts["different"] > 0)


def _show(found: Comparison, screen: Screen) -> None:
    from bridge.text import escape_block as printable

    recording = found.recording
    model = (recording.start or {}).get("requested_model") or "-"
    colour = {"same": "green", "different": "red"}.get(found.outcome, "yellow")
    word = screen.style(found.outcome.replace("_", " "), colour)
    screen.line(f"{word}  {printable(recording.id)}  {printable(recording.path)}  {printable(str(model))}")
    for line in found.lines:
        style = ("red",) if line.startswith("-") else ("green",) if line.startswith("+") else ()
        screen.line("    " + screen.style(printable(line), *style))


def _print(log: Log, filters: Filters, wanted: str | None) -> int:
    """Write what each client would get to stdout, after a comment that names the request; the exit code."""
    import sys

    from bridge.errors import BridgeError
    from bridge.replay.verify import PROTOCOLS, translate
    from bridge.terminal import say

    code = 0

    async def show(verifier: Verifier, recording: Recording) -> None:
        nonlocal code
        # A transcript has no client whose protocol it could be.
        name = wanted or (None if recording.client else "responses")
        protocol = next((known for known in PROTOCOLS if known == name), None)
        try:
            if protocol is not None:
                out = await translate(recording, protocol)
            else:
                found = await verifier.verify(recording)
                if found.now is None:
                    say("note", f"{recording.id}: {' '.join(found.lines)}")
                    return
                out = found.now.sent
        except BridgeError as error:
            say("error", f"{recording.id}: {error.message}")
            code = 1
            return
        if protocol not in ("text", "wire", "cap"):
            sys.stdout.buffer.write(f": {recording.id} {recording.path}\n\n".encode("utf-8", "replace"))
        sys.stdout.buffer.write(out if out.endswith(b"\n") else out + b"\n")

    _for_each(log, filters, show)
    sys.stdout.buffer.flush()
    return code
