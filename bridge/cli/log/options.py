"""What the log commands have in common: the log, the index, and the filters."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from bridge.cli.log.terminal import Screen
    from bridge.protolog.filters import Filters
    from bridge.protolog.log import Log
    from bridge.protolog.read import Trouble
    from bridge.protolog.summary import Summary

LogPath = Annotated[
    Path, typer.Argument(metavar="LOG", help="An event log: a file, or a directory of them.", show_default=False)
]
NoIndex = Annotated[bool, typer.Option("--no-index", help="Neither use nor make an index of the log.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]

_FILTERS: dict[str, Any] = {
    "model": typer.Option("--model", metavar="NAME", help="Only this model; * and ? stand for anything."),
    "outcome": typer.Option(
        "--outcome", metavar="OUTCOME", help="completed, incomplete, failed, cancelled, unfinished, or failed:CODE."
    ),
    "since": typer.Option("--since", metavar="TIME", help="Not before: 2026-03-01, 08:30, or 10m, 2h, 3d ago."),
    "until": typer.Option("--until", metavar="TIME", help="Not after; written like --since."),
    "tool": typer.Option("--tool", metavar="NAME", help="Only requests whose answer called this tool."),
    "req": typer.Option("--req", metavar="ID", help="Only requests whose id begins so; req_ may be left out."),
    "path": typer.Option("--path", metavar="PATH", help="Only this endpoint, or exec; a part of it is enough."),
    "grep": typer.Option("--grep", metavar="TEXT", help="Only requests that hold this text, or whose answer does."),
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

        from bridge.protolog.filters import parse_filters

        typed = {name: given.pop(name) for name in _FILTERS}
        command(**given, filters=parse_filters(datetime.now().astimezone(), **typed))

    with_filters.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_filters.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del with_filters.__wrapped__
    return with_filters


def open_log(path: Path, screen: Screen, *, no_index: bool = False) -> Log:
    """A log to be read, with a bar that tells how far it is."""
    from bridge.protolog.index import cache_dir
    from bridge.protolog.log import Log

    log = Log(path, None if no_index else cache_dir(), told=screen.progress.told)
    screen.progress.size = log.size
    return log


def chosen(log: Log, filters: Filters) -> Iterator[Summary]:
    """The requests that fit."""
    if filters.are_none:
        yield from log.summaries()
        return
    for summary in log.summaries(filters.wants_id if filters.req is not None else None):
        if filters.accepts(summary, log.records):
            yield summary


def tell_trouble(trouble: Trouble, screen: Screen) -> None:
    """What is wrong with a log, on stderr."""
    screen.flush()
    screen.progress.clear()
    sentences = trouble.sentences()
    if sentences:
        from bridge.cli.streams import say

        for sentence in sentences:
            say("note", f"{sentence}.")
