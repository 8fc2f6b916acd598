"""Stores to test, a clock that stands still, and short names for what is kept in them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from bridge.store.base import Conversation, Store, StoredResponse, UsageRow
from bridge.store.postgres.store import PostgresStore
from bridge.store.queued import QueuedStore
from bridge.store.sqlite import SqliteStore

Where = Callable[[str], Path | str]
"""Where a store of a kind keeps its data."""
DAY = 86_400.0
TTL = 1_000.0
MANY_BYTES = 100 * 1024 * 1024


class Clock:
    """Time that passes when a test says so. It begins on 2026-11-16 at noon, UTC."""

    def __init__(self) -> None:
        self.time = 1_794_830_400.0

    def __call__(self) -> float:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += seconds


class Written:
    """A store whose changes are all written before the next call, so that every call goes to the database."""

    def __init__(self, store: QueuedStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._store, name)
        if name == "count" or not callable(member):
            return member

        async def written(*args: Any, **kwargs: Any) -> Any:
            await self._store.flush()
            return await member(*args, **kwargs)

        return written


@asynccontextmanager
async def running(store: Store) -> AsyncIterator[None]:
    """The store's owner runs; at the end it is stopped."""
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def sqlite_store(path: Path | None, clock: Clock, **limits: Any) -> AsyncIterator[SqliteStore]:
    """A store on a file, or in memory, with its owner."""
    store = SqliteStore(path, now=clock, **({"ttl": TTL, "max_bytes": MANY_BYTES} | limits))
    async with running(store):
        yield store


@asynccontextmanager
async def postgres_store(url: str, clock: Clock, **limits: Any) -> AsyncIterator[PostgresStore]:
    """A store in a database, with its owner."""
    store = PostgresStore(url, now=clock, **({"ttl": TTL, "max_bytes": MANY_BYTES} | limits))
    async with running(store):
        yield store


@asynccontextmanager
async def store_of_kind(kind: str, where: Path | str, clock: Clock, **limits: Any) -> AsyncIterator[Store]:
    """`waiting`: a file that nothing is written to yet; `written` and `memory`: a database that has everything.

    `postgres` commits every change by itself; `where` is the URL of its database, and a directory for the others.
    """
    limits = {"ttl": TTL, "max_bytes": MANY_BYTES} | limits
    folder = Path(where)
    if kind == "postgres":
        async with postgres_store(str(where), clock, **limits) as store:
            yield Written(store)
    elif kind == "waiting":
        waiting = SqliteStore(folder / "store.db", now=clock, **limits)
        yield waiting
        async with running(waiting):
            pass
    else:
        async with sqlite_store(None if kind == "memory" else folder / "store.db", clock, **limits) as file:
            yield Written(file)


def item(id: str, text: str = "") -> dict[str, Any]:
    return {"type": "message", "id": id, "content": text}


def response(
    id: str,
    previous: str | None = None,
    *,
    output: list[Any] | None = None,
    input: list[Any] | None = None,
    size: int = 0,
    conversation: str | None = None,
) -> StoredResponse:
    """A small response, or one of just `size` bytes."""
    body = json.dumps({"id": id, "output": output or []}).encode()
    text = json.dumps(input or []).encode()
    return StoredResponse(id, 1_794_830_400, body.ljust(size - len(text)), text, previous, conversation)


def conversation(id: str, **metadata: str) -> Conversation:
    return Conversation(id, 1_794_830_400, metadata)


def json_items(*ids: str, text: str = "") -> list[bytes]:
    return [json.dumps(item(id, text)).encode() for id in ids]


def usage(day: str, key: str = "key", model: str = "model", **counts: int) -> UsageRow:
    zeros = dict.fromkeys(("requests", "failed", "input", "cached", "output", "reasoning"), 0)
    return UsageRow(day, key, model, **(zeros | counts))


def ids(responses: list[StoredResponse] | None) -> list[str] | None:
    return None if responses is None else [response.id for response in responses]


def item_ids(items: list[bytes] | None) -> list[str] | None:
    return None if items is None else [json.loads(item)["id"] for item in items]
