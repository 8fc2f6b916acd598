"""Options that the log commands share: the log, the index and the filters."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from bridge.log.commands.terminal import Screen
    from bridge.log.filters import Filters
    from bridge.log.log import Log
    from bridge.log.read import Trouble
    from bridge.log.summary import Summary

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


def filtered(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of all filters; it gets them as one parameter, `filters`."""
    hints = get_type_hints(command, localns={"Filters": object}, include_extras=True)
    parameters = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "filters"
    ]
    for name, option in _FILTERS.items():
        annotation = Annotated[str | None, option]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))

    @functools.wraps(command)
    def with_filters(**given: Any) -> None:
        from datetime import datetime

        from bridge.log.filters import parse_filters

        typed = {name: given.pop(name) for name in _FILTERS}
        command(**given, filters=parse_filters(datetime.now().astimezone(), **typed))

    with_filters.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_filters.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del with_filters.__wrapped__
    return with_filters


def open_log(path: Path, screen: Screen, *, no_index: bool = False) -> Log:
    """Open a log, with a progress bar while it is read."""
    from bridge.log.log import Log, cache_dir

    log = Log(path, None if no_index else cache_dir(), on_read=screen.progress.advance)
    screen.progress.size = log.size
    return log


def chosen(log: Log, filters: Filters) -> Iterator[Summary]:
    """The requests that match the filters."""
    if filters.are_none:
        yield from log.summaries()
        return
    for summary in log.summaries(filters.wants_id):
        if filters.accepts(summary, log.records):
            yield summary


def report_trouble(trouble: Trouble, screen: Screen) -> None:
    """Report the faults of a log on stderr."""
    from bridge.terminal import say

    screen.flush()
    screen.progress.clear()
    for sentence in trouble.sentences():
        say("note", f"{sentence}.")
