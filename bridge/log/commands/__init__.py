"""The commands of `turnbridge log`. What they need is imported when they run: `--help` must not load it all."""

from __future__ import annotations

from typing import Annotated

import typer

from bridge.log.commands import export, redact
from bridge.log.commands.options import Filters, Json, LogPath, NoIndex, filtered

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.command("export")(export.command)
app.command("redact")(redact.command)


@app.command()
@filtered
def ls(log: LogPath, json: Json = False, no_index: NoIndex = False, *, filters: Filters) -> None:
    """List the requests of a log, one line each, in the order in which they ended.

    The columns are tokens in and out, the time to the first event and in total, the number of tool calls (! if
    arguments are not valid JSON) and the number of repairs to them. A wider terminal shows more. Use `log show LOG
    REQUEST` to see one request.
    """
    from bridge.log.commands.requests import Table, chosen, reading, report_none

    count = 0
    with reading(log, no_index=no_index) as (screen, [opened]):
        table = Table(screen)
        for count, summary in enumerate(chosen(opened, filters), 1):
            if json:
                screen.json(summary)
                continue
            if count == 1:
                screen.line(table.head)
            screen.line(table.line(summary))
    if not count:
        report_none(filters)


@app.command()
@filtered
def show(
    log: LogPath,
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
    *,
    filters: Filters,
) -> None:
    """Show one request: the input, the model's answer, what the bridge made of it, and how it ended.

    Tool calls in text are marked. The first time the whole log is read, later only the part with the request.
    """
    from bridge.errors import UsageError
    from bridge.log.commands.requests import find_request, reading
    from bridge.log.commands.show import Conversation, show_conversation, show_frames

    if frames and json:
        raise UsageError("Use either --frames or --json, not both.")
    with reading(log, no_index=no_index) as (screen, [opened]):
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
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Keep showing new requests until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many to show first.")] = 10,
    events: Annotated[bool, typer.Option("--events", help="One line per record instead of one per request.")] = False,
    json: Json = False,
    no_index: NoIndex = False,
    *,
    filters: Filters,
) -> None:
    """Show the last requests of a log, one line each; with -f also each new request when it ends.

    Follows rotation, truncation and new files in a directory.
    """
    from bridge.log.commands.requests import reading
    from bridge.log.commands.tail import tail_events, tail_requests

    with reading(log, no_index=no_index) as (screen, [opened]):
        try:
            (tail_events if events else tail_requests)(screen, opened, filters, lines, follow=follow, json=json)
        except KeyboardInterrupt:
            if not follow:
                raise


@app.command()
@filtered
def stats(
    log: LogPath,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    no_index: NoIndex = False,
    *,
    filters: Filters,
) -> None:
    """Count the requests of a log by outcome, model, error and tool, with tokens, latencies and times."""
    from bridge.log.commands.requests import chosen, reading
    from bridge.log.commands.stats import Totals, show_totals

    with reading(log, no_index=no_index) as (screen, [opened]):
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
    no_index: NoIndex = False,
    *,
    filters: Filters,
) -> None:
    """Show the differences in the request, the backend's output, the client's answer and the outcome.

    For two whole logs, requests with the same path and model are compared in order. Ids, times and the way a text was
    split into deltas are ignored. Exit code 1 if anything differs.
    """
    from bridge.errors import UsageError
    from bridge.log.commands.compare import compare_logs, compare_requests, split_name
    from bridge.log.commands.requests import reading

    (left, first), (right, second) = split_name(before), split_name(after)
    if bool(first) != bool(second):
        raise UsageError("Name a request of both logs (LOG:REQUEST) or of neither.")
    if first and not filters.are_none:
        raise UsageError("Filters apply only when two whole logs are compared.")
    with reading(left, right, no_index=no_index) as (screen, logs):
        same = compare_requests(screen, logs, (first, second)) if first else compare_logs(screen, logs, filters)
    if not same:
        raise typer.Exit(1)


@app.command()
def serve(
    log: LogPath,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 0,
    no_index: NoIndex = False,
) -> None:
    """Show a log in a browser: the page of a running bridge, read-only, for this machine alone. Stop with Ctrl-C.

    The printed address works once, for ten minutes. `log export --html` makes a file to send to others.
    """
    import trio

    from bridge.log.log import Log, cache_dir
    from bridge.server.recorded_page import serve_recording

    opened = Log(log.resolve(), None if no_index else cache_dir())
    trio.run(serve_recording, opened, port, typer.echo)


@app.command()
@filtered
def verify(
    log: LogPath,
    update: Annotated[
        bool, typer.Option("--update", help="Replace the recorded answers with those of the current code.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Report every request.")] = False,
    *,
    filters: Filters,
) -> None:
    """Answer every recorded request again from its backend's messages and compare with the recorded answer.

    Exit code 1 if any byte differs. The same as `replay --verify`.
    """
    from bridge.replay.replay_command import run_verify

    run_verify(log, filters, update=update, verbose=verbose)
