"""`turnbridge log export`: a log as a page to look at, as a HAR archive, or as rows for other programs."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Annotated

import typer

from bridge.log.commands.options import Filters, LogPath, filtered


@filtered
def command(
    log: LogPath,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="One page that needs nothing else; opens in any browser.")
    ] = None,
    har: Annotated[Path | None, typer.Option(metavar="FILE", help="HAR 1.2, for browsers and HTTP tools.")] = None,
    jsonl: Annotated[
        Path | None, typer.Option(metavar="FILE", help="One JSON object per request, with the final answer.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the last N requests.")] = None,
    *,
    filters: Filters,
) -> None:
    """Write a log in another form. A FILE that is - is stdout.

    The page holds at most 200 MB of records, the latest ones, and says so when there were more; filters choose others.
    Secrets that were removed from the log stay removed, and keys that a model spelled out in pieces are removed too;
    `turnbridge log redact` removes more.
    """
    from bridge.errors import UsageError
    from bridge.log.commands.requests import MatchingRecordings, report, report_none
    from bridge.log.commands.terminal import printing
    from bridge.log.export.har import har_pieces
    from bridge.log.export.html import MAX_BYTES, PageTurns, page_pieces
    from bridge.log.export.turn import jsonl_row
    from bridge.terminal import say, write_pieces

    target = html or har or jsonl
    if target is None or [html, har, jsonl].count(None) != 2:
        raise UsageError("Give one of --html FILE, --har FILE and --jsonl FILE.")
    turns = PageTurns(limit)
    with printing() as screen:
        matching = MatchingRecordings(log, filters, screen)
        trouble = matching.reader.trouble
        if html is not None:
            turns.take(matching)
            pieces = page_pieces(turns, name=log.resolve().name, notes=trouble.sentences())
        else:
            found = matching if limit is None else deque(matching, maxlen=limit)
            pieces = har_pieces(found) if har is not None else map(jsonl_row, found)
        write_pieces(target, pieces, instead_of=matching.reader.files)
        report(screen, trouble)
    if not matching.count:
        report_none(filters)
    if turns.left_out:
        why = "--limit" if limit is not None and len(turns) >= limit else f"a page holds {MAX_BYTES // 1_000_000} MB"
        say("note", f"{turns.left_out} earlier request(s) left out ({why}); filters like --since choose others.")
