"""The commands of `turnbridge log`. What they need is imported when they run: `--help` must not load it all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.log.commands import export, redact
from bridge.log.commands.options import Json, LogPath, NoIndex, filtered

if TYPE_CHECKING:
    from bridge.log.commands.terminal import Screen
    from bridge.log.filters import Filters
    from bridge.log.log import Log

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.command("export")(export.command)
app.command("redact")(redact.command)


@contextmanager
def _reading(path: Path, *, no_index: bool) -> Iterator[tuple[Screen, Log]]:
    """A screen and a log. The faults of the log are reported at the end, also when a request is not found."""
    from bridge.errors import UsageError
    from bridge.log.commands.options import open_log, report_trouble
    from bridge.log.commands.terminal import printing

    with printing() as screen:
        log = open_log(path, screen, no_index=no_index)
        try:
            yield screen, log
        except UsageError:
            report_trouble(log.trouble, screen)
            raise
        report_trouble(log.trouble, screen)


@app.command()
@filtered
def ls(log: LogPath, filters: Filters, json: Json = False, no_index: NoIndex = False) -> None:
    """List the requests of a log, one line each, in the order in which they ended.

    The columns are tokens in and out, the time to the first event and in total, the number of tool calls (! if
    arguments are not valid JSON) and the number of repairs to them. A wider terminal shows more. Use `log show LOG
    REQUEST` to see one request.
    """
    from bridge.log.commands.options import chosen
    from bridge.log.commands.requests import Table
    from bridge.terminal import say

    count = 0
    with _reading(log, no_index=no_index) as (screen, opened):
        table = Table(screen)
        for count, summary in enumerate(chosen(opened, filters), 1):
            if json:
                screen.json(summary)
                continue
            if count == 1:
                screen.line(table.head)
            screen.line(table.line(summary))
    if not count:
        say("note", "the log contains no requests." if filters.are_none else "no request matches the filters.")


@app.command()
@filtered
def show(
    log: LogPath,
    filters: Filters,
    request: Annotated[
        str | None,
        typer.Argument(
            metavar="REQUEST",
            help="Request id or its beginning. Default: the last request that matches the filters.",
            show_default=False,
        ),
    ] = None,
    frames: Annotated[bool, typer.Option("--frames", help="One line per backend message and client event.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The records as they are in the log.")] = False,
    no_index: NoIndex = False,
) -> None:
    """Show one request: the input, the model's answer, what the bridge made of it, and how it ended.

    Tool calls in text are marked. The first time the whole log is read, later only the part with the request.
    """
    from bridge.errors import UsageError
    from bridge.log.commands.requests import find_request
    from bridge.log.commands.show import Conversation, show_conversation, show_frames

    if frames and json:
        raise UsageError("Use either --frames or --json, not both.")
    with _reading(log, no_index=no_index) as (screen, opened):
        summary = find_request(opened, request, filters)
        screen.progress.clear()
        if json:
            for record in opened.records(summary):
                screen.json(record)
        elif frames:
            show_frames(screen, summary, opened.records(summary))
        else:
            show_conversation(screen, Conversation(opened, summary))


@app.command()
@filtered
def tail(
    log: LogPath,
    filters: Filters,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Keep showing new requests until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many to show first.")] = 10,
    events: Annotated[bool, typer.Option("--events", help="One line per record instead of one per request.")] = False,
    json: Json = False,
    no_index: NoIndex = False,
) -> None:
    """Show the last requests of a log, one line each; with -f also each new request when it ends.

    Follows rotation, truncation and new files in a directory.
    """
    from bridge.log.commands.tail import tail_events, tail_requests

    with _reading(log, no_index=no_index) as (screen, opened):
        try:
            (tail_events if events else tail_requests)(screen, opened, filters, lines, follow=follow, json=json)
        except KeyboardInterrupt:
            if not follow:
                raise


@app.command()
@filtered
def stats(
    log: LogPath,
    filters: Filters,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    no_index: NoIndex = False,
) -> None:
    """Count the requests of a log by outcome, model, error and tool, with tokens, latencies and times."""
    from bridge.log.commands.options import chosen
    from bridge.log.commands.stats import Totals, show_totals

    with _reading(log, no_index=no_index) as (screen, opened):
        totals = Totals()
        for summary in chosen(opened, filters):
            totals.add(summary)
        screen.progress.clear()
        if json:
            screen.json(totals.as_json())
        else:
            show_totals(screen, totals)


@app.command()
@filtered
def diff(
    before: Annotated[str, typer.Argument(metavar="LOG[:REQUEST]", help="A log, or one request of it.")],
    after: Annotated[str, typer.Argument(metavar="LOG[:REQUEST]", help="The other one, of the same or another log.")],
    filters: Filters,
    no_index: NoIndex = False,
) -> None:
    """Show the differences in the request, the backend's output, the client's answer and the outcome.

    For two whole logs, requests with the same path and model are compared in order. Ids, times and the way a text was
    split into deltas are ignored. Exit code 1 if anything differs.
    """
    from bridge.errors import UsageError
    from bridge.log.commands.compare import compare_logs, compare_requests, split_name
    from bridge.log.commands.terminal import printing

    with printing() as screen:
        left, right = split_name(before), split_name(after)
        if left[1] and right[1]:
            if not filters.are_none:
                raise UsageError("Filters apply only when two whole logs are compared.")
            same = compare_requests(screen, left, right, no_index=no_index)
        elif left[1] or right[1]:
            raise UsageError("Name a request of both logs (LOG:REQUEST) or of neither.")
        else:
            same = compare_logs(screen, left[0], right[0], filters, no_index=no_index)
    if not same:
        raise typer.Exit(1)


@app.command()
@filtered
def verify(
    log: LogPath,
    filters: Filters,
    update: Annotated[
        bool, typer.Option("--update", help="Replace the recorded answers with those of the current code.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Report every request.")] = False,
) -> None:
    """Answer every recorded request again from its backend's messages and compare with the recorded answer.

    Exit code 1 if any byte differs. The same as `replay --verify`.
    """
    from bridge.replay.replay_command import run_verify

    with _reading(log, no_index=True) as (screen, opened):
        code = run_verify(opened, filters, screen, update=update, verbose=verbose)
    raise typer.Exit(code)
