"""`turnbridge log export`: a log as a page to look at, as a HAR archive, or as rows for other programs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.log.commands.options import LogPath, filtered

if TYPE_CHECKING:
    from bridge.log.filters import Filters
    from bridge.log.recording import Recording


@filtered
def command(
    log: LogPath,
    filters: Filters,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="One page that needs nothing else; opens in any browser.")
    ] = None,
    har: Annotated[Path | None, typer.Option(metavar="FILE", help="HAR 1.2, for browsers and HTTP tools.")] = None,
    jsonl: Annotated[
        Path | None, typer.Option(metavar="FILE", help="One JSON object per request, with the final answer.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the last N requests.")] = None,
) -> None:
    """Write a log in another form. A FILE that is - is stdout.

    The page holds at most 200 MB of records, the latest ones, and says so when there were more; filters choose others.
    Secrets that were removed from the log stay removed, and keys that a model spelled out in pieces are removed too;
    `turnbridge log redact` removes more.
    """
    from bridge.errors import UsageError
    from bridge.log.commands.terminal import Progress
    from bridge.log.export.har import har_pieces
    from bridge.log.export.html import MAX_BYTES, PageTurns, page_pieces
    from bridge.log.export.turn import accepted, jsonl_row
    from bridge.log.read import RecordReader, log_files, refuse_other_files
    from bridge.log.recording import read_recordings
    from bridge.terminal import say, write_pieces

    target = html or har or jsonl
    if target is None or [html, har, jsonl].count(None) != 2:
        raise UsageError("Give one of --html FILE, --har FILE and --jsonl FILE.")
    files = log_files(log)
    progress = Progress()
    progress.size = sum(file.stat().st_size for file in files)
    reader = RecordReader(files, on_read=progress.advance)
    count = 0

    def recordings() -> Iterator[Recording]:
        """Those that match. Raises ConfigError at the end if nothing was a record, so that no file is written."""
        nonlocal count
        for count, recording in enumerate(accepted(read_recordings(reader), filters), 1):  # noqa: B007
            yield recording
        progress.clear()
        if reader.found_nothing:
            refuse_other_files(log, reader.files, reader.trouble)

    turns = PageTurns(limit)
    if html is not None:
        turns.take(recordings())
        pieces = page_pieces(turns, name=log.resolve().name, notes=reader.trouble.sentences())
    else:
        found = recordings() if limit is None else deque(recordings(), maxlen=limit)
        pieces = har_pieces(found) if har is not None else map(jsonl_row, found)
    write_pieces(target, pieces, instead_of=files)
    for sentence in reader.trouble.sentences():
        say("note", sentence + ".")
    if not count:
        say("note", "the log contains no requests." if filters.are_none else "no request matches the filters.")
    if turns.left_out:
        why = "--limit" if limit is not None and len(turns) >= limit else f"a page holds {MAX_BYTES // 1_000_000} MB"
        say("note", f"{turns.left_out} earlier request(s) left out ({why}); filters like --since choose others.")
