"""`codex-bridge log show`: one request as a conversation, as frames, or as its records."""

from __future__ import annotations

from typing import Annotated

import typer

from bridge.cli.log.options import LogPath, NoIndex


def command(
    log: LogPath,
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="Its id; the beginning is enough.")],
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
    from bridge.cli.log.find import find_request
    from bridge.cli.log.frames import show_frames
    from bridge.cli.log.options import open_log, tell_trouble
    from bridge.cli.log.terminal import printing
    from bridge.errors import UsageError

    if frames and json:
        raise UsageError("--frames and --json are two views; choose one of them.")
    with printing() as screen:
        opened = open_log(log, screen, no_index=no_index)
        try:
            summary = find_request(opened, request)
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
