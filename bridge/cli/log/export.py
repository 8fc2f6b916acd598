"""`codex-bridge log export`: a log as a page to look at, as a HAR archive, or as rows for other programs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.cli.log.options import LogPath, filtered

if TYPE_CHECKING:
    from bridge.cli.log.terminal import Progress
    from bridge.protolog.filters import Filters
    from bridge.protolog.read import RecordReader
    from bridge.protolog.recording import Recording


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

    The page holds 200 MB of records at most, the latest ones. It says so when there were more; filters choose others.
    What was removed from the log as secret stays removed, and keys that a model has spelled out in pieces go, too;
    `codex-bridge log redact` removes more.
    """
    from bridge.cli.log.terminal import Progress
    from bridge.errors import UsageError
    from bridge.protolog.export.har import har_pieces
    from bridge.protolog.export.jsonl import jsonl_row
    from bridge.protolog.export.output import write_pieces
    from bridge.protolog.export.summarised import accepted
    from bridge.protolog.read import RecordReader, log_files
    from bridge.protolog.recording import read_recordings

    target = html or har or jsonl
    if target is None or [html, har, jsonl].count(None) != 2:
        raise UsageError("Give one of --html FILE, --har FILE and --jsonl FILE.")
    files = log_files(log)
    progress = Progress()
    progress.size = sum(file.stat().st_size for file in files)
    reader = RecordReader(files, told=progress.told)
    found = _counted(accepted(read_recordings(reader), filters), reader, log, progress)
    if html is not None:
        pieces = _page(reader, found, log, limit)
    elif har is not None:
        pieces = har_pieces(_last(found, limit))
    else:
        pieces = map(jsonl_row, _last(found, limit))
    write_pieces(target, pieces, instead_of=files)


def _counted(found: Iterable[Recording], reader: RecordReader, log: Path, progress: Progress) -> Iterator[Recording]:
    """Those that fit; at the end it is told what was wrong with the log, and whether there were none.

    Raises ConfigError where it is no log.
    """
    from bridge.cli.streams import say

    count = 0
    for recording in found:
        count += 1
        yield recording
    progress.clear()
    if reader.found_nothing:
        from bridge.protolog.read import refuse_other_files

        refuse_other_files(log, reader.files, reader.trouble)
    for sentence in reader.trouble.sentences():
        say("note", sentence + ".")
    if not count:
        say("note", "no request of this log fits, or it holds none.")


def _page(reader: RecordReader, found: Iterable[Recording], log: Path, limit: int | None) -> Iterator[bytes]:
    from bridge.cli.streams import say
    from bridge.protolog.export.html import MAX_BYTES, PageTurns, page_pieces

    turns = PageTurns(limit)
    turns.take(found)
    yield from page_pieces(turns, name=log.resolve().name, told=reader.trouble.sentences())
    if turns.left_out:
        why = "--limit" if limit is not None and len(turns) >= limit else f"a page holds {MAX_BYTES // 1_000_000} MB"
        say("note", f"{turns.left_out} earlier request(s) left out ({why}); filters like --since choose others.")


def _last(found: Iterable[Recording], limit: int | None) -> Iterable[Recording]:
    return found if limit is None else deque(found, maxlen=limit)
