"""Queued changes applied to the file give the true content, wherever a batch is taken, lost or written."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store.stores import conversation, item, json_items, response, usage

from bridge.store import statements
from bridge.store.changes import (
    Batch,
    Change,
    Changes,
    ConversationEntry,
    Key,
    UsageTable,
    create,
    make_entry,
    response_size,
    with_ids,
)
from bridge.store.database import prepare
from bridge.store.engine import Bounds

BOUNDS = Bounds(used_after=-1, max_bytes=10**9, first_day="")

names = st.sampled_from("123")
lists = st.lists(names, max_size=3)
actions = st.one_of(
    st.tuples(st.just("put"), names, lists),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("touch"), names),
    st.tuples(st.just("create"), names, lists),
    st.tuples(st.just("add"), names, lists),
    st.tuples(st.just("set"), names),
    st.tuples(st.just("delete item"), names, names),
    st.tuples(st.just("drop"), names),
    st.tuples(st.just("count"), st.integers(1, 3)),
    st.tuples(st.just("take"), st.integers(1, 2000), st.none() | st.integers(1, 3)),
    st.tuples(st.just("write")),
    st.tuples(st.just("lose")),
)


def key_of(id: str) -> Key:
    return "s", id


class Model:
    """A queue and a file, and the content that they should have. A writer takes a batch, then writes or loses it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.queue = Changes()
        self.batch: Batch | None = None
        self.time = 0.0
        self.responses: dict[str, Any] = {}
        self.uses: dict[str, float] = {}
        self.conversations: dict[str, dict[str, bytes]] = {}
        self.metadata: dict[str, Any] = {}
        self.requests = 0

    def act(self, action: tuple[Any, ...]) -> None:
        self.time += 1
        text = "x" * int(self.time)
        match action:
            case "put", id, items:
                new = response(id, output=[item(name, text) for name in items])
                self.queue.set_response(key_of(id), make_entry(new, self.time))
                self.responses[id], self.uses[id] = new, self.time
            case "delete", id:
                self.queue.set_response(key_of(id), None)
                self.responses.pop(id, None)
            case "touch", id if id in self.responses:
                self.queue.set_response(key_of(id), self.time)
                self.uses[id] = self.time
            case "create", id, items:
                new_items = json_items(*items, text=text)
                self.change(id, create(conversation(id, at=text), new_items, self.time))
                self.conversations[id], self.metadata[id] = dict(with_ids(new_items)), {"at": text}
            case "add", id, items if id in self.conversations:
                step = Change(self.time, items=with_ids(json_items(*items, text=text)))
                self.change(id, step)
                self.conversations[id].update(step.items)
            case "set", id if id in self.conversations:
                self.change(id, Change(self.time, metadata={"at": text}))
                self.metadata[id] = {"at": text}
            case "delete item", id, name if name in self.conversations.get(id, {}):
                self.change(id, Change(self.time, delete_item=name))
                del self.conversations[id][name]
            case "drop", id if id in self.conversations:
                self.change(id, Change(self.time, delete=True))
                del self.conversations[id]
            case "count", requests:
                self.queue.add_usage(usage("2026-11-16", requests=requests))
                self.requests += requests
            case "take", size, most if self.batch is None:
                self.batch = self.queue.take(size, most)
            case ("write",) if self.batch is not None:
                statements.write(self.connection, self.batch, BOUNDS)
                self.queue.written(self.batch)
                self.batch = None
            case ("lose",):
                self.batch = None

    def change(self, id: str, change: Change) -> None:
        self.queue.change_conversation(key_of(id), Change(self.time))
        self.queue.change_conversation(key_of(id), change)

    def check(self) -> None:
        for id in "123":
            in_file = statements.read_response(self.connection, "s", id)
            kept = self.queue.response(key_of(id), in_file)
            assert (kept and kept.response) == self.responses.get(id)
            assert kept is None or kept.used == self.uses[id]
            found = statements.read_conversation(self.connection, "s", id, items=True)
            now = self.queue.conversation(key_of(id), found)
            assert (now is not None) == (id in self.conversations)
            if isinstance(now, ConversationEntry):
                assert list(now.items.items()) == list(self.conversations[id].items())
                assert now.conversation.metadata == self.metadata[id]
        rows = self.queue.usage(statements.read_usage(self.connection, ""), "")
        assert rows == UsageTable([usage("2026-11-16", requests=self.requests)]).rows()

    def finish(self) -> None:
        """Write everything."""
        self.batch = None
        while self.queue:
            self.act(("take", 1, None))
            self.act(("write",))
            self.check()
        total = self.connection.execute("SELECT bytes FROM total").fetchone()[0]
        assert total == sum(map(response_size, self.responses.values())) + sum(
            ConversationEntry(conversation(id, **self.metadata[id]), 0, items).size
            for id, items in self.conversations.items()
        )
        assert repr(self.queue) == "<Changes changes=0 usage=0 bytes=0>"


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        prepare(connection, "memory")
        yield connection


@given(st.lists(actions, max_size=60))
def test_readers_see_what_is_true_at_every_moment(actions: list[tuple[Any, ...]]) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        prepare(connection, "memory")
        model = Model(connection)
        for action in actions:
            model.act(action)
            model.check()
        model.finish()


@pytest.mark.parametrize(
    "meanwhile",
    [
        [("put", "1", ["2"])],
        [("touch", "1")],
        [("delete", "1")],
        [("add", "1", ["3", "1"])],
        [("delete item", "1", "1")],
        [("set", "1")],
        [("drop", "1")],
        [("drop", "1"), ("create", "1", ["1"])],
        [("create", "1", ["1"])],
        [("count", 2)],
    ],
    ids=str,
)
def test_changes_during_a_write_are_kept(connection: sqlite3.Connection, meanwhile: list[tuple[Any, ...]]) -> None:
    model = Model(connection)
    begin = [("put", "1", ["1"]), ("create", "1", ["1", "2"]), ("add", "1", ["3"]), ("count", 1), ("take", 10**6, None)]
    for action in [*begin, *meanwhile, ("write",)]:
        model.act(action)
        model.check()
    assert model.queue
    model.finish()


def test_a_batch_takes_part_of_a_conversation_with_many_changes(connection: sqlite3.Connection) -> None:
    """Readers wait for a batch, so its size is bounded, also when one conversation has most of the queue."""
    queue = Changes()
    queue.change_conversation(key_of("c"), create(conversation("c"), [], 0))
    for number in range(100):
        items = with_ids(json_items(str(number), text="x" * 1000))
        queue.change_conversation(key_of("c"), Change(number, items=items))
    batches = 0
    while queue:
        size, batch = queue.size, queue.take(10_000)
        statements.write(connection, batch, BOUNDS)
        queue.written(batch)
        assert size - queue.size < 12_000
        batches += 1
    assert batches >= 10
    assert queue.size == 0
    found = statements.read_conversation(connection, "s", "c", items=True)
    assert found is not None
    assert list(found.items) == [str(number) for number in range(100)]


def test_changes_written_one_by_one_take_linear_time() -> None:
    queue = Changes()
    for number in range(5000):
        queue.change_conversation(key_of("c"), Change(number, metadata={}))
    begun = time.monotonic()
    while queue:
        queue.written(queue.take(10**6, 1))
    assert time.monotonic() - begun < 2


def test_the_oldest_waiting_responses_are_dropped_and_nothing_else() -> None:
    queue = Changes()
    queue.change_conversation(key_of("c"), create(conversation("c"), json_items("m"), 0))
    queue.set_response(key_of("gone"), None)
    for number in range(5):
        queue.set_response(key_of(str(number)), make_entry(response(str(number), size=1000), 0))
    queue.set_response(key_of("0"), 1.0)
    before = queue.size
    assert queue.drop_oldest(before) == 0
    assert queue.drop_oldest(before - 1200) == 1
    assert queue.drop_oldest(before - 1300) == 1
    assert [number for number in range(5) if queue.response(key_of(str(number)), None)] == [2, 3, 4]
    assert queue.drop_oldest(0) == 3
    assert repr(queue).startswith("<Changes changes=2 usage=0 ")


def test_repeated_creation_and_deletion_does_not_grow_the_queue() -> None:
    queue = Changes()
    for number in range(100):
        queue.change_conversation(key_of("c"), create(conversation("c"), json_items("m", text="x" * 1000), number))
        queue.change_conversation(key_of("c"), Change(number, items=with_ids(json_items("n"))))
        queue.set_response(key_of("r"), make_entry(response("r", size=1000), number))
        queue.set_response(key_of("r"), float(number))
        queue.set_response(key_of("r"), None)
    assert queue.size < 5_000
    queue.change_conversation(key_of("c"), Change(0, delete=True))
    assert queue.size < 1_000
