"""Options that the log commands share: the log, the index and the filters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from bridge.cli.flags import text_flags

if TYPE_CHECKING:
    from bridge.log.filters import Filters as Filters
else:
    Filters: TypeAlias = Any
    """typer evaluates the annotations of commands. The module itself would load with every `--help`."""

LogPath = Annotated[
    Path, typer.Argument(metavar="LOG", help="An event log: a file, or a directory of them.", show_default=False)
]
NoIndex = Annotated[bool, typer.Option("--no-index", help="Do not use or write an index.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]

_FILTERS: dict[str, Any] = {
    "model": typer.Option("--model", metavar="NAME", help="Only this model; * and ? are wildcards."),
    "outcome": typer.Option(
        "--outcome", metavar="OUTCOME", help="completed, incomplete, failed, cancelled, unfinished, or failed:CODE."
    ),
    "since": typer.Option("--since", metavar="TIME", help="Not before: 2026-03-01, 08:30, or 10m, 2h, 3d ago."),
    "until": typer.Option("--until", metavar="TIME", help="Not after; same forms as --since."),
    "tool": typer.Option("--tool", metavar="NAME", help="Only requests whose answer called this tool."),
    "req": typer.Option("--req", metavar="ID", help="Only requests whose id starts with this; req_ is optional."),
    "path": typer.Option("--path", metavar="PATH", help="Only paths that contain this, or exec."),
    "grep": typer.Option("--grep", metavar="TEXT", help="Only requests with this text in input or answer."),
}


def _parse_filters(typed: dict[str, Any]) -> Filters:
    from datetime import datetime

    from bridge.log.filters import parse_filters

    return parse_filters(datetime.now().astimezone(), **typed)


filtered = text_flags(_FILTERS, _parse_filters, "filters")
"""Decorates a command: it gets the options of all filters, and its parameter `filters`."""
