"""`turnbridge lab import`: make a suite of recorded traffic, of a table, or of BFCL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.log.commands.options import Filters, filtered

if TYPE_CHECKING:
    from bridge.lab.imports import Imported

FORMATS = ("log",)
SHOWN = 10
"""Reasons for leaving something out that are shown."""


@filtered
def command(
    source: Annotated[
        list[str], typer.Argument(metavar="[FORMAT] PATH", help="log (the default) and its path.", show_default=False)
    ],
    into: Annotated[Path, typer.Option("--into", metavar="FILE", help="The suite to write; - is stdout.")],
    *,
    filters: Filters,
) -> None:
    """Make a suite of recorded traffic.

    `lab import LOG --into FILE.yaml` makes a case of each request in an event log that matches the filters: its
    conversation, its tools, and as the expectation the calls that were recorded. Edit those if the model was wrong.
    Secrets are removed. A FILE that exists is not overwritten.

    Exit codes: 0; 1 (the suite could not be written); 2 (wrong usage, or nothing to import).
    """
    from bridge.errors import UsageError
    from bridge.log.case import suite_yaml
    from bridge.terminal import escape_line, say, write_pieces

    _, path = _parse_source(source)
    if str(into) != "-" and into.exists():
        raise UsageError(f"{into} exists. Choose another file for --into, so that no edited case is lost.")
    found = _from_log(path, filters)
    for reason, count in found.left_out.most_common(SHOWN):
        say("note", escape_line(f"{count} left out: {reason}"))
    if len(found.left_out) > SHOWN:
        say("note", f"{found.left_out.total()} left out in all, for {len(found.left_out)} reasons")
    if not found.cases:
        raise UsageError(f"Nothing to import from {path}. Choose other filters or another file.")
    write_pieces(into, [suite_yaml(found.cases).encode()], instead_of=[path])
    say("note", f"{len(found.cases)} case(s) written to {into}; check what each one expects")


def _parse_source(words: list[str]) -> tuple[str, Path]:
    from bridge.errors import UsageError

    format = words[0] if len(words) == 2 else "log"
    if len(words) > 2 or format not in FORMATS:
        raise UsageError(f"Give a path, or a format and a path. The formats are {', '.join(FORMATS)}.")
    path = Path(words[-1])
    if not path.exists():
        raise UsageError(f"{path}: no such file.")
    return format, path


def _from_log(path: Path, filters: Filters) -> Imported:
    from bridge.lab.imports import checked
    from bridge.lab.imports.traffic import drafts_of
    from bridge.log.commands.requests import report
    from bridge.log.commands.terminal import printing
    from bridge.log.read import RecordReader, log_files, refuse_other_files
    from bridge.log.recording import read_recordings

    with printing() as screen:
        reader = RecordReader(log_files(path), on_read=screen.progress.advance)
        screen.progress.size = sum(file.stat().st_size for file in reader.files)
        found = checked(drafts_of(read_recordings(reader), filters))
        report(screen, reader.trouble)
        if reader.found_nothing:
            refuse_other_files(path, reader.files, reader.trouble)
    return found
