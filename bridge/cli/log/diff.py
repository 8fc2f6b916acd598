"""`codex-bridge log diff`: what is different between two requests, or two logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bridge.cli.log.options import NoIndex, filtered

if TYPE_CHECKING:
    from bridge.protolog.filters import Filters


@filtered
def command(
    before: Annotated[str, typer.Argument(metavar="LOG[:REQUEST]", help="A log, or one request of it.")],
    after: Annotated[str, typer.Argument(metavar="LOG[:REQUEST]", help="The other one; it may be the same log.")],
    filters: Filters,
    no_index: NoIndex = False,
) -> None:
    """Show what differs: in the request, in what the backend said, in what the client got, and in how it ended.

    Of two whole logs, requests to the same path and model are compared in their order. Ids and times do not count, nor
    how a text was cut into pieces. Exit code 1 when something differs.
    """
    from bridge.cli.log.comparing import compare_logs, compare_requests
    from bridge.cli.log.terminal import printing
    from bridge.errors import UsageError

    with printing() as screen:
        left, right = split_name(before), split_name(after)
        if left[1] and right[1]:
            if not filters.are_none:
                raise UsageError("Filters choose among the requests of two logs; here both are named.")
            same = compare_requests(screen, left, right, no_index=no_index)
        elif left[1] or right[1]:
            raise UsageError("Name a request of both logs (LOG:REQUEST), or of none.")
        else:
            same = compare_logs(screen, left[0], right[0], filters, no_index=no_index)
    if not same:
        raise typer.Exit(1)


def split_name(text: str) -> tuple[str, str]:
    """(the log, the request or nothing) of what was typed. A file whose name holds a colon is found, too."""
    import os

    if os.path.exists(text):
        return text, ""
    log, colon, request = text.rpartition(":")
    return (log, request) if colon and log else (text, "")
