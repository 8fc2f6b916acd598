"""What waits, laid over what is written, is always what is true, wherever a batch is taken, lost or written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store.stores import conversation, item, json_items, response, usage

from bridge.store import statements
from bridge.store.kept import (
    AddItems,
    DeleteItem,
    Drop,
    KeptConversation,
    SetMetadata,
    create,
    keep_response,
    response_size,
    with_ids,
)
from bridge.store.schema import prepare
from bridge.store.usage import UsageTable
from bridge.store.waiting import Batch, Waiting

BOUNDS = statements.Bounds(used_after=-1, max_bytes=10**9, first_day="")

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


class Tale:
    """A store told step by step: changes, and a writer who takes a batch and later writes or loses it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.waiting = Waiting()
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
                self.waiting.put("s", keep_response(new, self.time))
                self.responses[id], self.uses[id] = new, self.time
            case "delete", id:
                self.waiting.delete("s", id)
                self.responses.pop(id, None)
            case "touch", id if id in self.responses:
                self.waiting.touch("s", id, self.time)
                self.uses[id] = self.time
            case "create", id, items:
                new_items = json_items(*items, text=text)
                self.waiting.record("s", id, self.time, create(conversation(id, at=text), new_items))
                self.conversations[id], self.metadata[id] = dict(with_ids(new_items)), {"at": text}
            case "add", id, items if id in self.conversations:
                step = AddItems(with_ids(json_items(*items, text=text)))
                self.waiting.record("s", id, self.time, step)
                self.conversations[id].update(step.items)
            case "set", id if id in self.conversations:
                self.waiting.record("s", id, self.time, SetMetadata({"at": text}))
                self.metadata[id] = {"at": text}
            case "delete item", id, name if name in self.conversations.get(id, {}):
                self.waiting.record("s", id, self.time, DeleteItem(name))
                del self.conversations[id][name]
            case "drop", id if id in self.conversations:
                self.waiting.record("s", id, self.time, Drop())
                del self.conversations[id]
            case "count", requests:
                self.waiting.count(usage("2026-11-16", requests=requests))
                self.requests += requests
            case "take", size, most if self.batch is None:
                self.batch = self.waiting.take(size, most)
            case ("write",) if self.batch is not None:
                statements.write(self.connection, self.batch, BOUNDS)
                self.waiting.settle(self.batch)
                self.batch = None
            case ("lose",):
                self.batch = None

    def check(self) -> None:
        for id in "123":
            on_disk = statements.read_response(self.connection, "s", id)
            kept = self.waiting.over_response("s", id, on_disk)
            assert (kept and kept.response) == self.responses.get(id)
            assert kept is None or kept.used == self.uses[id]
            found = statements.read_conversation(self.connection, "s", id, items=True)
            now = self.waiting.over_conversation("s", id, found)
            assert (now is not None) == (id in self.conversations)
            if isinstance(now, KeptConversation):
                assert list(now.items.items()) == list(self.conversations[id].items())
                assert now.conversation.metadata == self.metadata[id]
        rows = self.waiting.over_usage(statements.read_usage(self.connection, ""), "")
        assert rows == UsageTable([usage("2026-11-16", requests=self.requests)]).rows()

    def finish(self) -> None:
        """Write everything."""
        self.batch = None
        while self.waiting:
            self.act(("take", 1, None))
            self.act(("write",))
            self.check()
        total = self.connection.execute("SELECT bytes FROM total").fetchone()[0]
        assert total == sum(map(response_size, self.responses.values())) + sum(
            KeptConversation(conversation(id, **self.metadata[id]), 0, items).size
            for id, items in self.conversations.items()
        )
        assert repr(self.waiting) == "<Waiting responses=0 conversations=0 usage=0 bytes=0>"


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        prepare(connection, "memory")
        yield connection


@given(st.lists(actions, max_size=60))
def test_readers_see_what_is_true_at_every_moment(actions: list[tuple[Any, ...]]) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        prepare(connection, "memory")
        tale = Tale(connection)
        for action in actions:
            tale.act(action)
            tale.check()
        tale.finish()


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
def test_what_comes_in_while_a_batch_is_written_is_kept(
    connection: sqlite3.Connection, meanwhile: list[tuple[Any, ...]]
) -> None:
    tale = Tale(connection)
    begin = [("put", "1", ["1"]), ("create", "1", ["1", "2"]), ("add", "1", ["3"]), ("count", 1), ("take", 10**6, None)]
    for action in [*begin, *meanwhile, ("write",)]:
        tale.act(action)
        tale.check()
    assert tale.waiting
    tale.finish()


def test_the_oldest_waiting_responses_are_dropped_and_nothing_else() -> None:
    waiting = Waiting()
    waiting.record("s", "c", 0, create(conversation("c"), json_items("m")))
    waiting.delete("s", "gone")
    for number in range(5):
        waiting.put("s", keep_response(response(str(number), size=1000), 0))
    waiting.touch("s", "0", 1)
    before = waiting.size
    assert waiting.drop_oldest(before) == 0
    assert waiting.drop_oldest(before - 1500) == 2
    assert [number for number in range(5) if waiting.response("s", str(number))] == [2, 3, 4]
    assert waiting.drop_oldest(0) == 3
    assert repr(waiting).startswith("<Waiting responses=1 conversations=1 usage=0 ")


def test_what_is_begun_and_ended_again_and_again_does_not_grow() -> None:
    waiting = Waiting()
    for number in range(100):
        waiting.record("s", "c", number, create(conversation("c"), json_items("m", text="x" * 1000)))
        waiting.record("s", "c", number, AddItems(with_ids(json_items("n"))))
        waiting.put("s", keep_response(response("r", size=1000), number))
        waiting.touch("s", "r", number)
        waiting.delete("s", "r")
    assert waiting.size < 5_000
    waiting.record("s", "c", 100, Drop())
    assert waiting.size < 1_000
