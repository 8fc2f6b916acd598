"""What is read from and written to a store's file. Every function takes the connection first and blocks."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

import orjson

from bridge.store.base import Conversation, StoredResponse, UsageRow
from bridge.store.kept import (
    AddItems,
    Create,
    DeleteItem,
    Drop,
    Items,
    KeptConversation,
    KeptResponse,
    SetMetadata,
    Step,
)
from bridge.store.schema import transaction
from bridge.store.waiting import Batch, Gone, Journal, Put, ResponseChange, Touch

CLEANED = 500
"""How many rows one transaction removes at least of a table before it leaves the rest to the next."""
SHRUNK = 2_500
"""How many free pages are given back at a time."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What may stay in the file."""

    used_after: float
    """Responses and conversations that were not used since then have expired."""
    max_bytes: int
    first_day: str


# Reading


def read_response(connection: sqlite3.Connection, scope: str, id: str) -> KeptResponse | None:
    """A response, expired or not."""
    row = connection.execute(
        """SELECT created_at, previous, conversation, used, body, input
        FROM response JOIN content USING (number) WHERE scope = ? AND id = ?""",
        (_blob(scope), _blob(id)),
    ).fetchone()
    if row is None:
        return None
    created_at, previous, conversation, used, body, input = row
    response = StoredResponse(id, created_at, body, input, _text(previous), _text(conversation))
    return KeptResponse(response, used)


def read_links(connection: sqlite3.Connection, scope: str, id: str) -> list[KeptResponse]:
    """A response and what it continues, newest first, as far as the file has it; each once."""
    links: dict[str, KeptResponse] = {}
    cursor: str | None = id
    while cursor is not None and cursor not in links:
        kept = read_response(connection, scope, cursor)
        if kept is None:
            break
        links[cursor] = kept
        cursor = kept.response.previous
    return list(links.values())


def read_holders(connection: sqlite3.Connection, scope: str, item_id: str) -> list[str]:
    """The ids of the responses that hold an item, newest first."""
    rows = connection.execute(
        """SELECT response.id FROM response_item JOIN response USING (number)
        WHERE response_item.scope = ? AND response_item.id = ? ORDER BY number DESC""",
        (_blob(scope), _blob(item_id)),
    )
    return [_text(id) for (id,) in rows.fetchall()]


def read_conversation(
    connection: sqlite3.Connection, scope: str, id: str, *, items: bool = False, item: str | None = None
) -> KeptConversation | None:
    """A conversation, expired or not, with all its items, or with that one, or with none."""
    row = connection.execute(
        "SELECT number, created_at, metadata, used FROM conversation WHERE scope = ? AND id = ?",
        (_blob(scope), _blob(id)),
    ).fetchone()
    if row is None:
        return None
    number, created_at, metadata, used = row
    kept = KeptConversation(Conversation(id, created_at, orjson.loads(metadata)), used)
    if items or item is not None:
        rows = connection.execute(
            "SELECT id, body FROM conversation_item WHERE conversation = ? AND (? OR id = ?) ORDER BY number",
            (number, items, _blob(item)),
        )
        kept.items.update((_text(id), body) for id, body in rows.fetchall())
    return kept


def read_usage(connection: sqlite3.Connection, since: str) -> list[UsageRow]:
    """The rows from that day on."""
    rows = connection.execute("SELECT * FROM usage WHERE day >= ?", (_blob(since),))
    return [UsageRow(_text(day), _text(key), _text(model), *counts) for day, key, model, *counts in rows.fetchall()]


# Writing


def write(connection: sqlite3.Connection, batch: Batch, bounds: Bounds) -> bool:
    """Write the changes and remove what is outside the bounds, all in one transaction; whether more has to go."""
    with transaction(connection):
        for (scope, id), change in batch.responses.items():
            _write_response(connection, _blob(scope), _blob(id), change)
        for (scope, id), journal in batch.conversations.items():
            _write_conversation(connection, _blob(scope), _blob(id), journal)
        _write_usage(connection, batch.usage)
        return _clean(connection, bounds, CLEANED + len(batch))


def shrink(connection: sqlite3.Connection) -> None:
    """Give some space back when much of the file is free."""
    free = connection.execute("PRAGMA freelist_count").fetchone()[0]
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    if free > SHRUNK and free > pages // 4:
        # As a script: each page is a row without columns, and `execute` would stop after the first.
        connection.executescript(f"PRAGMA incremental_vacuum({SHRUNK}); PRAGMA wal_checkpoint")


def _write_response(connection: sqlite3.Connection, scope: bytes, id: bytes, change: ResponseChange) -> None:
    match change:
        case Touch(used):
            connection.execute("UPDATE response SET used = max(used, ?) WHERE scope = ? AND id = ?", (used, scope, id))
        case Gone():
            connection.execute("DELETE FROM response WHERE scope = ? AND id = ?", (scope, id))
        case Put(kept):
            connection.execute("DELETE FROM response WHERE scope = ? AND id = ?", (scope, id))
            response = kept.response
            row = (scope, id, response.created_at, _blob(response.previous), _blob(response.conversation))
            number = connection.execute(
                """INSERT INTO response (scope, id, created_at, previous, conversation, used, size)
                VALUES (?, ?, ?, ?, ?, ?, ?)""",
                (*row, kept.used, kept.size),
            ).lastrowid
            connection.execute("INSERT INTO content VALUES (?, ?, ?)", (number, response.body, response.input))
            connection.executemany(
                "INSERT INTO response_item VALUES (?, ?, ?)",
                [(scope, _blob(item_id), number) for item_id in kept.item_ids],
            )


def _write_conversation(connection: sqlite3.Connection, scope: bytes, id: bytes, journal: Journal) -> None:
    row = connection.execute("SELECT number FROM conversation WHERE scope = ? AND id = ?", (scope, id)).fetchone()
    number: int | None = row[0] if row else None
    for step in journal.steps:
        number = _write_step(connection, scope, id, number, step, journal.used)
    connection.execute("UPDATE conversation SET used = max(used, ?) WHERE number = ?", (journal.used, number))


def _write_step(
    connection: sqlite3.Connection, scope: bytes, id: bytes, number: int | None, step: Step, used: float
) -> int | None:
    """One step on the conversation's row; the number of its row after it."""
    match step:
        case Create(conversation, items):
            connection.execute("DELETE FROM conversation WHERE number = ?", (number,))
            number = connection.execute(
                "INSERT INTO conversation (scope, id, created_at, metadata, used) VALUES (?, ?, ?, ?, ?)",
                (scope, id, conversation.created_at, orjson.dumps(conversation.metadata), used),
            ).lastrowid
            _write_items(connection, number, items)
        case Drop():
            connection.execute("DELETE FROM conversation WHERE number = ?", (number,))
            return None
        case SetMetadata(metadata):
            connection.execute(
                "UPDATE conversation SET metadata = ? WHERE number = ?", (orjson.dumps(metadata), number)
            )
        case AddItems(items) if number is not None:
            _write_items(connection, number, items)
        case DeleteItem(item_id):
            connection.execute(
                "DELETE FROM conversation_item WHERE conversation = ? AND id = ?", (number, _blob(item_id))
            )
    return number


def _write_items(connection: sqlite3.Connection, number: int | None, items: Items) -> None:
    connection.executemany(
        """INSERT INTO conversation_item (conversation, id, body) VALUES (?, ?, ?)
        ON CONFLICT (conversation, id) DO UPDATE SET body = excluded.body""",
        [(number, _blob(id), item) for id, item in items],
    )


def _write_usage(connection: sqlite3.Connection, rows: Sequence[UsageRow]) -> None:
    connection.executemany(
        """INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (day, key, model) DO UPDATE SET
            requests = requests + excluded.requests,
            failed = failed + excluded.failed,
            input = input + excluded.input,
            cached = cached + excluded.cached,
            output = output + excluded.output,
            reasoning = reasoning + excluded.reasoning""",
        [
            (
                *(_blob(row.day), _blob(row.key), _blob(row.model)),
                *(row.requests, row.failed, row.input, row.cached, row.output, row.reasoning),
            )
            for row in rows
        ],
    )


def _clean(connection: sqlite3.Connection, bounds: Bounds, most: int) -> bool:
    """Remove what has expired, then what is too much; whether `most` rows of a table were not enough."""
    whole = replace(bounds, max_bytes=sys.maxsize)
    unfinished = [
        _remove_oldest(connection, "conversation", whole, most),
        _remove_oldest(connection, "response", bounds, most),
    ]
    if not any(unfinished):
        unfinished.append(_remove_oldest(connection, "conversation", bounds, most))
    connection.execute("DELETE FROM usage WHERE day < ?", (_blob(bounds.first_day),))
    return any(unfinished)


def _remove_oldest(connection: sqlite3.Connection, table: str, bounds: Bounds, most: int) -> bool:
    """Remove the rows that were not used for the longest time, until the rest is within the bounds or `most` are."""
    oldest = f"SELECT number, used, (SELECT bytes FROM total) FROM {table} ORDER BY used, number LIMIT 1"  # noqa: S608
    for _ in range(most):
        row = connection.execute(oldest).fetchone()
        if row is None:
            return False
        number, used, total = row
        if used > bounds.used_after and total <= bounds.max_bytes:
            return False
        connection.execute(f"DELETE FROM {table} WHERE number = ?", (number,))  # noqa: S608 — the names are ours
    return True


@overload
def _blob(text: str) -> bytes: ...
@overload
def _blob(text: str | None) -> bytes | None: ...
def _blob(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogatepass")


@overload
def _text(blob: bytes) -> str: ...
@overload
def _text(blob: bytes | None) -> str | None: ...
def _text(blob: bytes | None) -> str | None:
    return None if blob is None else blob.decode("utf-8", "surrogatepass")
