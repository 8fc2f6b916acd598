"""`codex-bridge log tail`: the last requests of a log, and those that come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bridge.cli.log.options import Json, LogPath, NoIndex, filtered

if TYPE_CHECKING:
    from bridge.protolog.filters import Filters


@filtered
def command(
    log: LogPath,
    filters: Filters,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what comes, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many to begin with.")] = 10,
    events: Annotated[bool, typer.Option("--events", help="One line per record instead of one per request.")] = False,
    json: Json = False,
    no_index: NoIndex = False,
) -> None:
    """Show the last requests of a log, one line each as they end; with -f go on with those that come.

    Rotation, truncation and new files of a directory are followed.
    """
    from bridge.cli.log.following import tail_events, tail_requests
    from bridge.cli.log.options import open_log, tell_trouble
    from bridge.cli.log.terminal import printing

    with printing() as screen:
        opened = open_log(log, screen, no_index=no_index)
        try:
            if events:
                tail_events(screen, opened, filters, lines, follow=follow, json=json)
            else:
                tail_requests(screen, opened, filters, lines, follow=follow, json=json)
        except KeyboardInterrupt:
            if not follow:
                raise
        tell_trouble(opened.trouble, screen)
