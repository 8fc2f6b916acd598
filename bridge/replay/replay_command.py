"""`turnbridge replay`: answer recorded requests again from what their backends sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.cli.flags import check_choice
from bridge.log.commands import Filters, LogPath, filtered

if TYPE_CHECKING:
    from bridge.log.recording import Recording
    from bridge.replay.compare import Comparison
    from bridge.terminal import Screen


@filtered
def command(
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
