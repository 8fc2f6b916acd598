"""Whatever is done and in whatever order: a store does what its model does."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store.model import ModelStore
from store.postgresql import Postgresql
from store.stores import (
    MANY_BYTES,
    TTL,
    Clock,
    conversation,
    item,
    json_items,
    postgres_store,
    response,
    running,
    usage,
)

from bridge.store.base import Store
from bridge.store.sqlite import SqliteStore

Step = Callable[[Store], Awaitable[Any]]

scopes = st.sampled_from("ab")
names = st.sampled_from(["1", "2", "3", "4"])
item_lists = st.lists(names, max_size=3)
texts = st.sampled_from(["x", "y"])


async def count(store: Store, day: str, requests: int) -> None:
    store.count(usage(day, requests=requests))


def put(scope: str, id: str, previous: str | None, output: list[str], input: list[str], text: str) -> Step:
    new = response(id, previous, output=[item(i, text) for i in output], input=[item(i, text) for i in input])
    return lambda store: store.put(scope, new)


steps = st.one_of(
    st.builds(put, scopes, names, st.none() | names, item_lists, item_lists, texts),
    st.builds(lambda s, i: lambda store: store.get(s, i), scopes, names),
    st.builds(lambda s, i: lambda store: store.chain(s, i), scopes, names),
    st.builds(lambda s, i: lambda store: store.delete(s, i), scopes, names),
    st.builds(lambda s, i: lambda store: store.find_item(s, i), scopes, names),
    st.builds(
        lambda s, i, m, t: lambda store: store.create_conversation(s, conversation(i, m=t), json_items(*m, text=t)),
        scopes,
        names,
        item_lists,
        texts,
    ),
    st.builds(lambda s, i: lambda store: store.get_conversation(s, i), scopes, names),
    st.builds(lambda s, i, t: lambda store: store.update_conversation(s, i, {"m": t}), scopes, names, texts),
    st.builds(lambda s, i: lambda store: store.delete_conversation(s, i), scopes, names),
    st.builds(
        lambda s, i, m, t: lambda store: store.add_items(s, i, json_items(*m, text=t)), scopes, names, item_lists, texts
    ),
    st.builds(lambda s, i: lambda store: store.list_items(s, i), scopes, names),
    st.builds(lambda s, i, m: lambda store: store.delete_item(s, i, m), scopes, names, names),
    st.builds(
        lambda d, n: lambda store: count(store, d, n), st.sampled_from(["2026-11-16", "2026-11-17"]), st.integers(1, 3)
    ),
    st.just(lambda store: store.usage(since="2026-11-17")),
)
events = st.lists(
    st.one_of(
        steps,
        steps,
        st.sampled_from(["flush", "restart", "pass on"]),
        st.sampled_from([TTL / 3, TTL / 2, TTL]),
    ),
    max_size=40,
)


class Pair:
    """A file that is written to by one store at a time, a store in memory, and the model of both."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.folder = folder
        self.memory = self.open(None)
        self.model = ModelStore(self.clock)

    def open(self, path: Path | None) -> SqliteStore:
        return SqliteStore(path, ttl=TTL, max_bytes=MANY_BYTES, now=self.clock)

    async def play(self, events: list[Any]) -> None:
        """`restart` stops the store and begins with another; `pass on` goes on with a second one on the same file."""
        async with running(self.memory):
            await self.play_on_file(list(events))

    async def play_on_file(self, todo: list[Any]) -> None:
        path = self.folder / "store.db"
        async with trio.open_nursery() as nursery:
            store = self.open(path)
            await nursery.start(store.run)
            while todo:
                match todo.pop(0):
                    case "flush":
                        await store.flush()
                        await self.memory.flush()
                    case "pass on":
                        await store.flush()
                        store = self.open(path)
                        await nursery.start(store.run)
                    case "restart":
                        break
                    case float(seconds):
                        self.clock.advance(seconds)
                    case step:
                        self.clock.advance(1)
                        expected = await step(self.model)
                        assert await step(store) == expected
                        assert await step(self.memory) == expected
            nursery.cancel_scope.cancel()
        if todo:
            await self.play_on_file(todo)


class Bridges:
    """Two bridges on one database, which take turns, and the model of both."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = Clock()
        self.model = ModelStore(self.clock)

    async def play(self, events: list[Any]) -> None:
        async with postgres_store(self.url, self.clock) as one, postgres_store(self.url, self.clock) as other:
            for event in events:
                match event:
                    case "flush" | "restart" | "pass on":
                        # Usage is written a moment later.
                        await one.flush()
                        await other.flush()
                    case float(seconds):
                        self.clock.advance(seconds)
                    case step:
                        self.clock.advance(1)
                        assert await step(one) == await step(self.model)
                        await one.flush()
                        one, other = other, one


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(events)
def test_two_bridges_agree_with_the_model(postgresql: Postgresql, events: list[Any]) -> None:
    """Whatever one of them has done, the other one continues from there."""
    trio.run(Bridges(postgresql.empty_database()).play, events)


@given(events)
def test_the_file_and_the_memory_agree_with_the_model(events: list[Any]) -> None:
    """Also before anything is written, after a restart, and through a second store on the file."""
    with tempfile.TemporaryDirectory() as folder:
        trio.run(Pair(Path(folder)).play, events)
