"""`codex-bridge usage`: what was used, by day, key and model."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    days: Annotated[int, typer.Option(min=1, max=400, help="How many days back.")] = 30,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Show the tokens used through the bridge, by day, key and model.

    Counted are all requests of `serve` that reached a model, also while no event log is written. A key is shown by its
    name, where `codex-bridge keys add` gave it one, or by its label (key- and the beginning of its SHA-256 digest),
    never itself.
    """
    import math
    import time
    from datetime import UTC, datetime, timedelta

    import orjson
    import trio

    from bridge.auth.key_store import read_keys
    from bridge.config import key_store_file, store_file
    from bridge.server.pages import usage_entry
    from bridge.store.sqlite import SqliteStore

    since = (datetime.now(UTC).date() - timedelta(days=days - 1)).isoformat()
    if not store_file().exists():
        typer.echo("nothing was counted yet", err=True)
        return
    # A reader must not clean up: nothing is too old for it, and nothing too much.
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
