"""`turnbridge usage`: the tokens used, by day, key and model."""

from __future__ import annotations

from typing import Annotated

import typer

from bridge.cli.flags import Flags, setting_flags


@setting_flags(["config"])
def command(
    flags: Flags,
    days: Annotated[int, typer.Option(min=1, max=400, help="Number of days to show, up to today.")] = 30,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Show the tokens used, by day, key and model.

    Counts all requests to `serve` that reached a model, with or without an event log. A key is shown by the name that
    `turnbridge keys add` gave it, or by its label (`key-` and the start of its SHA-256 digest).
    """
    from datetime import UTC, datetime, timedelta

    import orjson

    from bridge.server.pages import usage_entry
    from bridge.settings.file import load_configuration
    from bridge.store.copying import configured_place

    place = configured_place(load_configuration(**flags)[0])
    since = (datetime.now(UTC).date() - timedelta(days=days - 1)).isoformat()
    if not place.exists():
        typer.echo("no usage recorded yet", err=True)
        return
    with place.contents(create=False) as contents:
        rows = [usage_entry(row) for row in sorted(contents.usage(since))]
    names = {key.label: key.name for key in place.keys.read()}
    if json:
        for row in rows:
            typer.echo(orjson.dumps({**row, "name": names.get(str(row["key"]))}).decode())
        return
    typer.echo(f"{'day':10} {'key':16} {'model':16} {'requests':>8} {'failed':>6} {'input':>9} {'output':>8}")
    for row in rows:
        who = names.get(str(row["key"]), str(row["key"]))
        typer.echo(
            f"{row['day']:10} {who:16.16} {row['model']!s:16.16} {row['requests']:>8} {row['failed']:>6} "
            f"{row['input_tokens']:>9} {row['output_tokens']:>8}"
        )
