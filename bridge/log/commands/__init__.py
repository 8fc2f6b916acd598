"""The commands of `turnbridge log`. What they need is imported when they run: `--help` must not load it all."""

from __future__ import annotations

from collections import deque
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


SHOWN_LEAKS = 10
"""How many remaining secrets `redact` reports."""

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.command()
@filtered
def ls(log: LogPath, json: Json = False, no_index: NoIndex = False, *, filters: Filters) -> None:
    """List the requests of a log, one line each, in the order in which they ended.

    The columns are tokens in and out, the time to the first event and in total, the number of tool calls (! if
    arguments are not valid JSON) and the number of repairs to them. A wider terminal shows more. Use `log show LOG
    REQUEST` to see one request.
    """
    from bridge.log.commands.requests import Table, reading, report_none
    from bridge.log.filters import chosen

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
    from bridge.log.commands.requests import reading
    from bridge.log.commands.stats import Totals, show_totals
    from bridge.log.filters import chosen

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
    from bridge.replay.commands import run_verify

    run_verify(log, filters, update=update, verbose=verbose)


@app.command()
@filtered
def export(
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
    from bridge.log.export import har_pieces, jsonl_row
    from bridge.log.export.html import MAX_BYTES, PageTurns, page_pieces
    from bridge.terminal import printing, say, write_pieces

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


@app.command()
@filtered
def redact(
    log: LogPath,
    output: Annotated[Path, typer.Option(metavar="FILE", help="File to write the copy to.", show_default=False)],
    secret: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Remove this text everywhere. May be repeated.")
    ] = None,
    secret_file: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Remove each line of this file; unlike --secret, hidden from other users."),
    ] = None,
    pattern: Annotated[
        list[str] | None, typer.Option(metavar="REGEX", help="Remove what this matches. May be repeated.")
    ] = None,
    texts: Annotated[
        bool, typer.Option("--texts", help="Remove all content; keep times and the shapes of events.")
    ] = False,
    *,
    filters: Filters,
) -> None:
    """Copy a log, or some of its requests, with more removed.

    What is removed leaves a digest. Secrets, pattern matches and keys of a known shape are also removed where they are
    split into deltas. Then the copy is searched for them. If one remains, its location is reported, no copy is kept,
    and the exit code is 1.
    """
    from bridge.errors import UsageError
    from bridge.log.redact import copy_log, parse_patterns, read_secrets
    from bridge.terminal import Progress, say

    secrets, patterns = read_secrets(secret or [], secret_file or []), parse_patterns(pattern or [])
    if not (secrets or patterns or texts) and filters.are_none:
        raise UsageError("Specify what to remove (--secret, --secret-file, --pattern, --texts) or filters to select.")
    progress = Progress()
    copied = copy_log(log, output, secrets, patterns, texts=texts, filters=filters, progress=progress)
    progress.clear()
    for sentence in copied.trouble.sentences():
        say("note", sentence + ".")
    if leaks := copied.leaks:
        for leak in leaks[:SHOWN_LEAKS]:
            say("error", f"a secret remains: {leak}")
        more = f" ({len(leaks) - SHOWN_LEAKS} more locations)" if len(leaks) > SHOWN_LEAKS else ""
        say("error", f"no copy was written{more}; use --texts to remove all content")
        raise typer.Exit(1)
    removed = ", ".join(f"{number} {what}" for what, number in copied.removed.items() if number) or "nothing"
    typer.echo(f"{output}: {copied.records} records, removed {removed}", err=True)
