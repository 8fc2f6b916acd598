"""`codex-bridge log show`: one request as a conversation, as frames, or as its records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bridge.cli.log.options import LogPath, NoIndex, filtered

if TYPE_CHECKING:
    from bridge.protolog.filters import Filters


@filtered
def command(
    log: LogPath,
    filters: Filters,
    request: Annotated[
        str | None,
        typer.Argument(
            metavar="REQUEST",
            help="Its id; the beginning is enough. Without it the last one that fits.",
            show_default=False,
        ),
    ] = None,
    frames: Annotated[
        bool,
        typer.Option("--frames", help="Every message of the backend and every event for the client, one line each."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="The records, as they stand in the log.")] = False,
    no_index: NoIndex = False,
) -> None:
    """Show one request: what was asked, what the model answered, what the bridge made of it, how it ended.

    Calls in text are marked. The first time the whole log is read, after that only the request's own part of it.
    """
    from bridge.cli.log.conversation import show_conversation
    from bridge.cli.log.find import find_last, find_request
    from bridge.cli.log.frames import show_frames
    from bridge.cli.log.options import open_log, tell_trouble
    from bridge.cli.log.terminal import printing
    from bridge.errors import UsageError

    if frames and json:
        raise UsageError("--frames and --json are two views; choose one of them.")
    with printing() as screen:
        opened = open_log(log, screen, no_index=no_index)
        try:
            summary = find_last(opened, filters) if request is None else find_request(opened, request, filters)
        except UsageError:
            tell_trouble(opened.trouble, screen)
            raise
        screen.progress.clear()
        records = opened.records(summary)
        if json:
            for record in records:
                screen.json(record)
        elif frames:
            show_frames(screen, summary, records)
        else:
            show_conversation(screen, summary, records)
        tell_trouble(opened.trouble, screen)
