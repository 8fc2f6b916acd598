"""`codex-bridge log ls`: one line per request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.cli.log.options import Json, LogPath, NoIndex, filtered

if TYPE_CHECKING:
    from bridge.protolog.filters import Filters


@filtered
def command(log: LogPath, filters: Filters, json: Json = False, no_index: NoIndex = False) -> None:
    """List the requests of a log, one line each, in the order in which they ended.

    Tokens in and out, the time to the first event and in all, how many tools were called (! where arguments are not
    JSON) and how many repairs their calls needed. A wider terminal shows more. `log show LOG REQUEST` shows one.
    """
    from bridge.cli.log.options import chosen, open_log, tell_trouble
    from bridge.cli.log.table import Table
    from bridge.cli.log.terminal import printing

    with printing() as screen:
        opened = open_log(log, screen, no_index=no_index)
        table = Table.on(screen)
        count = 0
        for summary in chosen(opened, filters):
            if json:
                screen.json(summary)
            else:
                if not count:
                    screen.line(table.head)
                screen.line(table.line(summary))
            count += 1
        tell_trouble(opened.trouble, screen)
        if not count:
            from bridge.cli.streams import say

            say("note", "this log holds no request." if filters.are_none else "no request of this log fits.")
