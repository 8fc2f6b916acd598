"""`codex-bridge log stats`: what a log adds up to."""

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
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    no_index: NoIndex = False,
) -> None:
    """Count the requests of a log: outcomes, models, errors, tokens, latencies, calls, repairs, and when they came."""
    from bridge.cli.log.options import chosen, open_log, tell_trouble
    from bridge.cli.log.plot import show_totals
    from bridge.cli.log.terminal import printing
    from bridge.cli.log.totals import Totals

    with printing() as screen:
        opened = open_log(log, screen, no_index=no_index)
        totals = Totals()
        for summary in chosen(opened, filters):
            totals.add(summary)
        screen.progress.clear()
        if json:
            screen.json(totals.as_json())
        else:
            show_totals(screen, totals)
        tell_trouble(opened.trouble, screen)
