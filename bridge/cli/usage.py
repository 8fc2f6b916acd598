"""`turnbridge usage`: the tokens used, by day, key and model."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    days: Annotated[int, typer.Option(min=1, max=400, help="Number of days to show, up to today.")] = 30,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Show the tokens used, by day, key and model.

    Counts all requests to `serve` that reached a model, with or without an event log. A key is shown by the name that
    `turnbridge keys add` gave it, or by its label (`key-` and the start of its SHA-256 digest).
    """
    import math
    import time
    from datetime import UTC, datetime, timedelta

    import orjson
    import trio

    from bridge.server.pages import usage_entry
    from bridge.settings import key_store_file, store_file
    from bridge.store.key_store import read_keys
    from bridge.store.sqlite import SqliteStore

    since = (datetime.now(UTC).date() - timedelta(days=days - 1)).isoformat()
    if not store_file().exists():
        typer.echo("no usage recorded yet", err=True)
        return
    # Reading must not delete anything: nothing is too old, and nothing too much.
    store = SqliteStore(store_file(), ttl=math.inf, max_bytes=1 << 60, now=time.time)

    async def read() -> list[dict[str, object]]:
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            rows = [usage_entry(row) for row in await store.usage(since=since)]
            nursery.cancel_scope.cancel()
        return rows

    rows = trio.run(read)
    names = {key.label: key.name for key in read_keys(key_store_file())}
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
