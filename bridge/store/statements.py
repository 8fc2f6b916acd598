"""The SQL that reads and writes a store's file. Every function takes the connection first and blocks."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import orjson

from bridge.store.base import Conversation, StoredResponse, UsageRow
from bridge.store.changes import Batch, Change, ConversationEntry, Key, ResponseChange, ResponseEntry, make_entry
from bridge.store.database import transaction
from bridge.store.engine import Bounds

CLEANED = 500
"""How many rows of a table one transaction removes, at least, before it leaves the rest to the next."""
ROWS = 1_000
"""How many rows one statement writes. SQLite accepts 32,766 values at a time."""
SHRUNK = 2_500
"""How many free pages are returned to the file system at a time."""


# Reading


def read_response(connection: sqlite3.Connection, scope: str, id: str) -> ResponseEntry | None:
    """A response, expired or not."""
    row = connection.execute(
        """SELECT created_at, previous, conversation, used, body, input
        FROM response JOIN content USING (number) WHERE scope = ? AND id = ?""",
        (_blob(scope), _blob(id)),
    ).fetchone()
    if row is None:
        return None
    created_at, *linked, used, body, input = row
    previous, conversation = (None if each is None else _text(each) for each in linked)
    return ResponseEntry(StoredResponse(id, created_at, body, input, previous, conversation), used)


def read_chain(connection: sqlite3.Connection, scope: str, id: str) -> dict[str, ResponseEntry]:
    """A response and what it continues by their ids, as far as the file has it."""
    links: dict[str, ResponseEntry] = {}
    cursor: str | None = id
    while cursor is not None and cursor not in links and (entry := read_response(connection, scope, cursor)):
        links[cursor] = entry
        cursor = entry.response.previous
    return links


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
) -> ConversationEntry | None:
    """A conversation, expired or not, with all its items, or with that one, or with none."""
    row = connection.execute(
        "SELECT number, created_at, metadata, used FROM conversation WHERE scope = ? AND id = ?",
        (_blob(scope), _blob(id)),
    ).fetchone()
    if row is None:
        return None
    number, created_at, metadata, used = row
    entry = ConversationEntry(Conversation(id, created_at, orjson.loads(metadata)), used)
    if items or item is not None:
        rows = connection.execute(
            "SELECT id, body FROM conversation_item WHERE conversation = ? AND (? OR id = ?) ORDER BY number",
            (number, items, _blob(item or "")),
        )
        entry.items.update((_text(id), body) for id, body in rows.fetchall())
    return entry


def read_usage(connection: sqlite3.Connection, since: str) -> list[UsageRow]:
    """The rows from that day on."""
    rows = connection.execute("SELECT * FROM usage WHERE day >= ?", (_blob(since),))
    return [UsageRow(_text(day), _text(key), _text(model), *counts) for day, key, model, *counts in rows.fetchall()]


def read_all(connection: sqlite3.Connection) -> Iterator[Batch]:
    """Everything, oldest first, as batches that write it to an empty database. In a transaction that has begun."""
    rows = connection.execute(
        """SELECT scope, id, created_at, previous, conversation, used, body, input
        FROM response JOIN content USING (number) ORDER BY number"""
    )
    for scope, id, created_at, *linked, used, body, input in rows:
        previous, conversation = (None if each is None else _text(each) for each in linked)
        entry = make_entry(StoredResponse(_text(id), created_at, body, input, previous, conversation), used)
        yield Batch(responses={(_text(scope), _text(id)): entry})
    for scope, id in connection.execute("SELECT scope, id FROM conversation ORDER BY number").fetchall():
        key = _text(scope), _text(id)
        found = read_conversation(connection, *key, items=True)
        assert found is not None
        yield Batch(conversations={key: [found.as_change()]})
    yield Batch(usage=read_usage(connection, ""))


def count_rows(connection: sqlite3.Connection) -> dict[str, int]:
    """How many rows the tables have."""
    tables = ("response", "conversation", "usage")
    counts = f"SELECT {', '.join(f'(SELECT count(*) FROM {table})' for table in tables)}"  # noqa: S608 — our names
    return dict(zip(tables, connection.execute(counts).fetchone(), strict=True))


def delete_all(connection: sqlite3.Connection) -> None:
    """Empty the tables, in a transaction that has begun."""
    for table in ("response", "conversation", "usage"):
        connection.execute(f"DELETE FROM {table}")  # noqa: S608 — our names


# Writing


def write(connection: sqlite3.Connection, batch: Batch, bounds: Bounds) -> bool:
    """Write a batch and remove what is outside the bounds, in one transaction; whether more has to be removed."""
    with transaction(connection):
        add(connection, batch)
        return _clean(connection, bounds, CLEANED + len(batch))


def add(connection: sqlite3.Connection, batch: Batch) -> None:
    """Write a batch in a transaction that has begun."""
    _write_responses(connection, batch.responses)
    for (scope, id), changes in batch.conversations.items():
        _write_conversation(connection, scope, id, changes)
    _write_usage(connection, batch.usage)


def shrink(connection: sqlite3.Connection) -> None:
    """Return some space to the file system when much of the file is free."""
    free = connection.execute("PRAGMA freelist_count").fetchone()[0]
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    if free > SHRUNK and free > pages // 4:
        # As a script: each page is a row without columns, and `execute` would stop after the first.
        connection.executescript(f"PRAGMA incremental_vacuum({SHRUNK}); PRAGMA wal_checkpoint")


def _write_responses(connection: sqlite3.Connection, changes: Mapping[Key, ResponseChange]) -> None:
    """Write responses, delete them and note their use, with few statements.

    Each statement releases the interpreter's lock, and a busy event loop holds it for 5 ms before it gives it back.
    With a statement per row, a bridge under load stored more slowly than it answered.
    """
    used = [(change, *map(_blob, key)) for key, change in changes.items() if isinstance(change, float)]
    connection.executemany("UPDATE response SET used = max(used, ?) WHERE scope = ? AND id = ?", used)
    replaced = [tuple(map(_blob, key)) for key, change in changes.items() if not isinstance(change, float)]
    _with_rows(connection, "DELETE FROM response WHERE (scope, id) IN (VALUES {rows})", replaced)
    last: int = connection.execute("SELECT coalesce(max(number), 0) FROM response").fetchone()[0]
    responses, contents, items = [], [], []
    put = [(_blob(scope), entry) for (scope, _), entry in changes.items() if isinstance(entry, ResponseEntry)]
    for number, (scope, entry) in enumerate(put, last + 1):
        response = entry.response
        linked = (None if each is None else _blob(each) for each in (response.previous, response.conversation))
        responses.append((number, scope, _blob(response.id), *linked, response.created_at, entry.used, entry.size))
        contents.append((number, response.body, response.input))
        items += [(scope, _blob(item_id), number) for item_id in entry.item_ids]
    _with_rows(
        connection,
        """INSERT INTO response (number, scope, id, previous, conversation, created_at, used, size)
        VALUES {rows}""",
        responses,
    )
    _with_rows(connection, "INSERT INTO content VALUES {rows}", contents)
    _with_rows(connection, "INSERT INTO response_item VALUES {rows}", items)


def _with_rows(connection: sqlite3.Connection, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
    """Run a statement once for every `ROWS` rows, which replace `{rows}`."""
    for start in range(0, len(rows), ROWS):
        some = rows[start : start + ROWS]
        marks = ", ".join([f"({', '.join('?' * len(some[0]))})"] * len(some))
        connection.execute(statement.format(rows=marks), [value for row in some for value in row])


def _write_conversation(connection: sqlite3.Connection, scope: str, id: str, changes: Sequence[Change]) -> None:
    key = _blob(scope), _blob(id)
    row = connection.execute("SELECT number FROM conversation WHERE scope = ? AND id = ?", key).fetchone()
    number: int | None = row[0] if row else None
    for change in changes:
        if change.is_whole:
            connection.execute("DELETE FROM conversation WHERE number = ?", (number,))
            number = None
        if (new := change.create) is not None:
            number = connection.execute(
                "INSERT INTO conversation (scope, id, created_at, metadata, used) VALUES (?, ?, ?, ?, ?)",
                (*key, new.created_at, orjson.dumps(new.metadata), change.used),
            ).lastrowid
        if number is None:
            continue
        if change.metadata is not None:
            metadata = orjson.dumps(change.metadata)
            connection.execute("UPDATE conversation SET metadata = ? WHERE number = ?", (metadata, number))
        connection.executemany(
            """INSERT INTO conversation_item (conversation, id, body) VALUES (?, ?, ?)
            ON CONFLICT (conversation, id) DO UPDATE SET body = excluded.body""",
            [(number, _blob(item_id), item) for item_id, item in change.items],
        )
        if change.delete_item is not None:
            connection.execute(
                "DELETE FROM conversation_item WHERE conversation = ? AND id = ?", (number, _blob(change.delete_item))
            )
    used = max(change.used for change in changes)
    connection.execute("UPDATE conversation SET used = max(used, ?) WHERE number = ?", (used, number))


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
        [(*map(_blob, row[:3]), *row[3:]) for row in rows],
    )


def _clean(connection: sqlite3.Connection, bounds: Bounds, most: int) -> bool:
    """Remove what has expired, then the oldest beyond `max_bytes`; whether a table needs more than `most` removals."""
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
    """Remove up to `most` rows, least recently used first, until the bounds hold; False once they do."""
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


def _blob(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(blob: bytes) -> str:
    return blob.decode("utf-8", "surrogatepass")
