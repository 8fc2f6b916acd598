"""`turnbridge lab import`: make a suite of recorded traffic, of a table, or of BFCL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.log.commands import Filters, filtered

if TYPE_CHECKING:
    from bridge.lab.imports import Imported, Json

FORMATS = ("log", "bfcl", "jsonl", "csv")
SHOWN = 10
"""Reasons for leaving something out that are shown."""
MAX_FILE = 2_000_000
"""Bytes of one file of a suite of BFCL; a file of a suite may have five million."""


@filtered
def command(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="[FORMAT] PATH", help="log (the default), bfcl, jsonl or csv, and a path.", show_default=False
        ),
    ],
    into: Annotated[
        Path, typer.Option("--into", metavar="FILE|DIR", help="The suite to write; - is stdout. For bfcl a directory.")
    ],
    *,
    filters: Filters,
) -> None:
    """Make a suite of recorded traffic, of a table, or of BFCL.

    `lab import LOG --into FILE.yaml` makes a case of each request in an event log that matches the filters: its
    conversation, its tools, and as the expectation the calls that were recorded. Edit those if the model was wrong.
    Secrets are removed.

    `lab import bfcl WHEEL --into DIR` reads the public wheel bfcl-eval (pip download --no-deps bfcl-eval), and writes
    its single-turn categories to DIR/cases and its prompt formats, as variants, to DIR/formats. `lab import jsonl FILE`
    and `lab import csv FILE` read tables; docs/lab.md describes them. What exists is not overwritten.

    Exit codes: 0; 1 (the suite could not be written); 2 (wrong usage, or nothing to import).
    """
    from bridge.errors import UsageError
    from bridge.lab.imports import checked
    from bridge.log.case import suite_yaml
    from bridge.terminal import say, write_pieces

    format, path = _parse_source(source)
    if format != "log" and not filters.are_none:
        raise UsageError(f"Filters choose requests of a log; leave them out for {format}.")
    if str(into) != "-" and into.exists():
        raise UsageError(f"{into} exists. Choose another name for --into, so that no edited case is lost.")
    if format == "bfcl":
        _write_bfcl(path, into)
        return
    if format == "log":
        found = _from_log(path, filters)
    else:
        from bridge.lab.imports.table import csv_drafts, jsonl_drafts

        found = checked(csv_drafts(path) if format == "csv" else jsonl_drafts(path))
    _report_left_out(found)
    if not found.cases:
        remedy = "Choose other filters or another file." if format == "log" else "docs/lab.md describes the format."
        raise UsageError(f"Nothing to import from {path}. {remedy}")
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


def _report_left_out(found: Imported) -> None:
    from bridge.terminal import escape_line, say

    for reason, count in found.left_out.most_common(SHOWN):
        say("note", escape_line(f"{count} left out: {reason}"))
    if len(found.left_out) > SHOWN:
        say("note", f"{found.left_out.total()} left out in all, for {len(found.left_out)} reasons")


def _from_log(path: Path, filters: Filters) -> Imported:
    from bridge.lab.imports import checked
    from bridge.lab.imports.traffic import drafts_of
    from bridge.log.commands.requests import report
    from bridge.log.read import RecordReader, log_files, refuse_other_files
    from bridge.log.recording import read_recordings
    from bridge.terminal import printing

    with printing() as screen:
        reader = RecordReader(log_files(path), on_read=screen.progress.advance)
        screen.progress.size = sum(file.stat().st_size for file in reader.files)
        found = checked(drafts_of(read_recordings(reader), filters))
        report(screen, reader.trouble)
        if reader.found_nothing:
            refuse_other_files(path, reader.files, reader.trouble)
    return found


def _write_bfcl(path: Path, into: Path) -> None:
    """Write the categories as JSON, in files that a suite may have, and the formats as YAML."""
    from bridge.errors import ConfigError, UsageError
    from bridge.lab.imports import checked
    from bridge.lab.imports.bfcl import KINDS, Wheel, bfcl_drafts, bfcl_formats
    from bridge.log.case import dump_yaml
    from bridge.terminal import say, write_pieces

    if str(into) == "-":
        raise UsageError("BFCL makes many files. Give a directory with --into.")
    wheel, count = Wheel(path), 0
    try:
        for name in ("cases", "formats"):
            (into / name).mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"Cannot make {into}: {error.strerror}.") from None
    for category in KINDS:
        found = checked(bfcl_drafts(wheel, category))
        _report_left_out(found)
        count += len(found.cases)
        for number, piece in enumerate(_files(found.cases), 1):
            write_pieces(into / "cases" / f"{category.replace('_', '-')}-{number}.json", [piece])
    names = []
    for name, variant in bfcl_formats(wheel):
        write_pieces(into / "formats" / f"{name}.yaml", [dump_yaml(variant).encode()])
        names.append(name)
    notice = f"Made of {path.name} by turnbridge. Its data and prompts: Apache License 2.0, the authors of BFCL.\n"
    write_pieces(into / "NOTICE.txt", [notice.encode()])
    say("note", f"{count} case(s) written to {into / 'cases'}, {len(names)} formats to {into / 'formats'}")


def _files(cases: list[Json]) -> Iterator[bytes]:
    """Suites of these cases, one case per line, that are not too large."""
    import orjson

    lines: list[bytes] = []
    for case in cases:
        line = orjson.dumps(case)
        if lines and sum(map(len, lines)) + len(line) > MAX_FILE:
            yield b'{"cases": [\n' + b",\n".join(lines) + b"\n]}\n"
            lines = []
        lines.append(line)
    if lines:
        yield b'{"cases": [\n' + b",\n".join(lines) + b"\n]}\n"
