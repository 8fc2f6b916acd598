"""The SQL that reads and writes a store in PostgreSQL. Every function takes the connection first and blocks."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from bridge.store.base import Conversation, StoredResponse, UsageRow
from bridge.store.changes import (
    ROW_SIZE,
    Batch,
    Change,
    ConversationEntry,
    Key,
    ResponseChange,
    ResponseEntry,
    make_entry,
)
from bridge.store.engine import Bounds
from bridge.store.postgres.server import Connection

CLEANED = 500
"""How many rows of a table one transaction removes, at least, before it leaves the rest to the next."""
CLEANING = 0x7475726E63
"""The number of the advisory lock of the one bridge that removes old rows."""
WRITER_DAYS = 30
"""After how many days without a write the number of a bridge's last batch is forgotten."""

_RESPONSE = "SELECT id, created_at, previous, conversation, used, body, input FROM turnbridge.response"


def digest(*texts: str | bytes) -> bytes:
    """What stands for these texts in an index, which cannot hold texts of any length."""
    hashed = hashlib.sha256()
    for text in texts:
        data = _blob(text) if isinstance(text, str) else text
        hashed.update(b"%d:%b" % (len(data), data))
    return hashed.digest()


# Reading


def read_response(connection: Connection, scope: str, id: str) -> ResponseEntry | None:
    """A response, expired or not."""
    rows = _rows(connection, f"{_RESPONSE} WHERE key = %b", digest(scope, id))
    return _response(rows[0]) if rows else None


def read_chain(connection: Connection, scope: str, id: str) -> dict[str, ResponseEntry]:
    """A response and what it continues by their ids, as far as the database has it."""
    rows = _rows(
        connection,
        f"""WITH RECURSIVE chain AS (
            SELECT key, previous_key FROM turnbridge.response WHERE key = %b
            UNION SELECT earlier.key, earlier.previous_key
            FROM turnbridge.response earlier JOIN chain ON earlier.key = chain.previous_key
        ) {_RESPONSE} JOIN chain USING (key)""",  # noqa: S608 — the names are ours
        digest(scope, id),
    )
    entries = map(_response, rows)
    return {entry.response.id: entry for entry in entries}


def read_holders(connection: Connection, scope: str, item_id: str) -> list[str]:
    """The ids of the responses that hold an item, newest first."""
    rows = _rows(
        connection,
        """SELECT id FROM turnbridge.response JOIN turnbridge.response_item ON response = key
        WHERE item = %b ORDER BY number DESC""",
        digest(scope, item_id),
    )
    return [_text(id) for (id,) in rows]


def read_conversation(
    connection: Connection, scope: str, id: str, *, items: bool = False, item: str | None = None
) -> ConversationEntry | None:
    """A conversation, expired or not, with all its items, or with that one, or with none."""
    key = digest(scope, id)
    # One statement, so that the conversation and its items are of one moment.
    rows = _rows(
        connection,
        """SELECT created_at, metadata, used, item.id, item.body FROM turnbridge.conversation found
        LEFT JOIN turnbridge.conversation_item item ON item.conversation = found.key AND (%b OR item.key = %b)
        WHERE found.key = %b ORDER BY item.number""",
        items,
        digest(item or ""),
        key,
    )
    if not rows:
        return None
    created_at, metadata, used = rows[0][:3]
    entry = ConversationEntry(Conversation(id, created_at, orjson.loads(metadata)), used)
    if items or item is not None:
        entry.items.update((_text(row[3]), row[4]) for row in rows if row[3] is not None)
    return entry


def read_usage(connection: Connection, since: str) -> list[UsageRow]:
    """The rows from that day on."""
    rows = _rows(
        connection,
        """SELECT day, client, model, requests, failed, input, cached, output, reasoning
        FROM turnbridge.usage WHERE day >= %b""",
        _blob(since),
    )
    return [UsageRow(_text(day), _text(key), _text(model), *counts) for day, key, model, *counts in rows]


def read_all(connection: Connection) -> Iterator[Batch]:
    """Everything, oldest first, as batches that write it to an empty database. In a transaction that has begun."""
    with connection.cursor("turnbridge_copy", binary=True) as cursor:
        cursor.itersize = 100
        cursor.execute(
            b"""SELECT scope, id, created_at, previous, conversation, used, body, input
            FROM turnbridge.response ORDER BY number"""
        )
        for scope, *row in cursor:
            entry = _response(tuple(row))
            whole = make_entry(entry.response, entry.used)
            yield Batch(responses={(_text(scope), entry.response.id): whole})
    for scope, id in _rows(connection, "SELECT scope, id FROM turnbridge.conversation ORDER BY number"):
        key = _text(scope), _text(id)
        found = read_conversation(connection, *key, items=True)
        assert found is not None
        yield Batch(conversations={key: [found.as_change()]})
    yield Batch(usage=read_usage(connection, ""))


def count_rows(connection: Connection) -> dict[str, int]:
    """How many rows the tables have."""
    tables = ("response", "conversation", "usage")
    counts = f"SELECT {', '.join(f'(SELECT count(*) FROM turnbridge.{table})' for table in tables)}"  # noqa: S608
    return dict(zip(tables, _rows(connection, counts)[0], strict=True))


def delete_all(connection: Connection) -> None:
    """Empty the tables, in a transaction that has begun."""
    for table in ("response", "conversation", "usage"):
        connection.execute(f"DELETE FROM turnbridge.{table}".encode())  # noqa: S608 — our names


def _rows(connection: Connection, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """The rows of a statement. Values and rows are binary: text takes twice as many bytes, and time."""
    return connection.execute(statement.encode(), values, binary=True).fetchall()


def _response(row: tuple[Any, ...]) -> ResponseEntry:
    id, created_at, previous, conversation, used, body, input = row
    previous, conversation = (None if each is None else _text(each) for each in (previous, conversation))
    return ResponseEntry(StoredResponse(_text(id), created_at, body, input, previous, conversation), used)


# Writing


def write(connection: Connection, writer: bytes, number: int, batch: Batch) -> None:
    """Write a batch in one transaction, unless this writer has written the batch of this number.

    The server may have committed a batch although the connection broke before it could say so. Such a batch is sent
    again, and must not be counted twice. The row of the writer is locked first: should the server still be busy with
    the lost transaction, the second one waits for its end.
    """
    connection.execute("BEGIN")
    is_new = _rows(
        connection,
        """INSERT INTO turnbridge.writer (id, batch) VALUES (%b, %b)
        ON CONFLICT (id) DO UPDATE SET batch = excluded.batch, seen = now() WHERE writer.batch < excluded.batch
        RETURNING 1""",
        writer,
        number,
    )
    if is_new:
        add(connection, batch)
    connection.execute("COMMIT")


def add(connection: Connection, batch: Batch) -> None:
    """Write a batch in a transaction that has begun."""
    _write_responses(connection, batch.responses)
    _write_conversations(connection, batch.conversations)
    _write_usage(connection, batch.usage)


def _write_responses(connection: Connection, changes: Mapping[Key, ResponseChange]) -> None:
    if not changes:
        return
    keys = {key: digest(*key) for key in changes}
    # All bridges lock rows in the same order, so that no two wait for each other.
    _rows(
        connection,
        "SELECT 1 FROM turnbridge.response WHERE key = ANY(%b) ORDER BY key FOR UPDATE",
        list(keys.values()),
    )
    used = [(keys[key], change) for key, change in changes.items() if isinstance(change, float)]
    if used:
        connection.execute(
            """UPDATE turnbridge.response found SET used = greatest(found.used, given.used)
            FROM unnest(%b::bytea[], %b::float8[]) AS given (key, used) WHERE found.key = given.key""",
            _columns(used),
        )
    replaced = [keys[key] for key, change in changes.items() if not isinstance(change, float)]
    if replaced:
        connection.execute("DELETE FROM turnbridge.response WHERE key = ANY(%b)", (replaced,))
    put = [(keys[key], key[0], change) for key, change in changes.items() if isinstance(change, ResponseEntry)]
    _insert_responses(connection, put)


def _insert_responses(connection: Connection, put: Sequence[tuple[bytes, str, ResponseEntry]]) -> None:
    """Add responses that are not there yet: (digest, scope, entry) of each."""
    rows, items = [], []
    for key, scope, entry in put:
        response = entry.response
        linked = [None if each is None else _blob(each) for each in (response.previous, response.conversation)]
        previous_key = None if response.previous is None else digest(scope, response.previous)
        about = (response.created_at, float(entry.used), entry.size, response.body, response.input)
        rows.append((key, _blob(scope), _blob(response.id), linked[0], previous_key, linked[1], *about))
        items += [(digest(scope, item_id), key) for item_id in dict.fromkeys(entry.item_ids)]
    if rows:
        connection.execute(
            """INSERT INTO turnbridge.response
                (key, scope, id, previous, previous_key, conversation, created_at, used, size, body, input)
            SELECT * FROM unnest(%b::bytea[], %b::bytea[], %b::bytea[], %b::bytea[], %b::bytea[], %b::bytea[],
                %b::bigint[], %b::float8[], %b::bigint[], %b::bytea[], %b::bytea[])""",
            _columns(rows),
        )
    if items:
        connection.execute(
            "INSERT INTO turnbridge.response_item SELECT * FROM unnest(%b::bytea[], %b::bytea[])", _columns(items)
        )


def _write_conversations(connection: Connection, changed: Mapping[Key, Sequence[Change]]) -> None:
    if not changed:
        return
    keys = {digest(*key): key for key in changed}
    _rows(
        connection,
        "SELECT 1 FROM turnbridge.conversation WHERE key = ANY(%b) ORDER BY key FOR UPDATE",
        list(keys),
    )
    for key, (scope, id) in keys.items():
        changes = changed[scope, id]
        for change in changes:
            if not change.is_use:
                _apply(connection, key, scope, change)
        used = max(change.used for change in changes)
        connection.execute(
            "UPDATE turnbridge.conversation SET used = greatest(used, %b) WHERE key = %b", (float(used), key)
        )
        if any(not change.is_use for change in changes):
            connection.execute(
                """UPDATE turnbridge.conversation SET size = %b + octet_length(metadata) + coalesce(
                    (SELECT sum(octet_length(body)) FROM turnbridge.conversation_item WHERE conversation = %b), 0
                ) WHERE key = %b""",
                (ROW_SIZE, key, key),
            )


def _apply(connection: Connection, key: bytes, scope: str, change: Change) -> None:
    """Apply a change to a conversation. Without the conversation, only `create` has an effect."""
    if change.is_whole:
        connection.execute("DELETE FROM turnbridge.conversation WHERE key = %b", (key,))
    if (new := change.create) is not None:
        about = (_blob(scope), _blob(new.id), new.created_at, orjson.dumps(new.metadata), float(change.used))
        connection.execute(
            """INSERT INTO turnbridge.conversation (key, scope, id, created_at, metadata, used, size)
            VALUES (%b, %b, %b, %b, %b, %b, 0)""",
            (key, *about),
        )
    if change.metadata is not None:
        connection.execute(
            "UPDATE turnbridge.conversation SET metadata = %b WHERE key = %b", (orjson.dumps(change.metadata), key)
        )
    # Of several items with one id, the first gives the place and the last the content.
    items = [(digest(id), _blob(id), body) for id, body in dict(change.items).items()]
    if items:
        connection.execute(
            """INSERT INTO turnbridge.conversation_item (conversation, key, id, body)
            SELECT found.key, given.key, given.id, given.body
            FROM turnbridge.conversation found,
                unnest(%b::bytea[], %b::bytea[], %b::bytea[]) WITH ORDINALITY AS given (key, id, body, place)
            WHERE found.key = %b ORDER BY place
            ON CONFLICT (conversation, key) DO UPDATE SET body = excluded.body""",
            (*_columns(items), key),
        )
    if change.delete_item is not None:
        connection.execute(
            "DELETE FROM turnbridge.conversation_item WHERE conversation = %b AND key = %b",
            (key, digest(change.delete_item)),
        )


def _write_usage(connection: Connection, rows: Sequence[UsageRow]) -> None:
    """Add to the rows."""
    if not rows:
        return
    added = sorted((digest(*row[:3]), *map(_blob, row[:3]), *row[3:]) for row in rows)
    connection.execute(
        """INSERT INTO turnbridge.usage
        SELECT * FROM unnest(%b::bytea[], %b::bytea[], %b::bytea[], %b::bytea[],
            %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[])
        ON CONFLICT (key) DO UPDATE SET
            requests = usage.requests + excluded.requests,
            failed = usage.failed + excluded.failed,
            input = usage.input + excluded.input,
            cached = usage.cached + excluded.cached,
            output = usage.output + excluded.output,
            reasoning = usage.reasoning + excluded.reasoning""",
        _columns(added),
    )


# Cleaning


def clean(connection: Connection, bounds: Bounds, most: int) -> bool:
    """Remove what has expired, then the oldest beyond `max_bytes`; whether a table needs more than `most` removals.

    While another bridge does so, there is nothing to do.
    """
    connection.execute("BEGIN")
    unfinished = False
    if _rows(connection, "SELECT pg_try_advisory_xact_lock(%b)", CLEANING)[0][0]:
        whole = replace(bounds, max_bytes=sys.maxsize)
        unfinished = any(
            [
                _remove_oldest(connection, "conversation", whole, most),
                _remove_oldest(connection, "response", bounds, most),
            ]
        )
        unfinished = unfinished or _remove_oldest(connection, "conversation", bounds, most)
        connection.execute("DELETE FROM turnbridge.usage WHERE day < %b", (_blob(bounds.first_day),))
        connection.execute(
            "DELETE FROM turnbridge.writer WHERE seen < now() - make_interval(days => %s)", (WRITER_DAYS,)
        )
    connection.execute("COMMIT")
    return unfinished


def _remove_oldest(connection: Connection, table: str, bounds: Bounds, most: int) -> bool:
    """Remove up to `most` rows, least recently used first, until the bounds hold; False once they do."""
    total = _rows(
        connection,
        """SELECT ((SELECT coalesce(sum(size), 0) FROM turnbridge.response)
            + (SELECT coalesce(sum(size), 0) FROM turnbridge.conversation))::bigint""",
    )[0][0]
    excess = max(total - bounds.max_bytes, 0)
    # Rows that another bridge is just writing are skipped: they are not the oldest for long.
    found = connection.execute(
        f"""WITH oldest AS (
            SELECT key, used, size, number FROM turnbridge.{table} ORDER BY used, number LIMIT %b
        ), removable AS (
            SELECT key FROM (
                SELECT key, used, sum(size) OVER (ORDER BY used, number) - size AS before FROM oldest
            ) summed WHERE used <= %b OR before < %b
        ), locked AS (
            SELECT key FROM turnbridge.{table} WHERE key IN (SELECT key FROM removable) FOR UPDATE SKIP LOCKED
        ) DELETE FROM turnbridge.{table} WHERE key IN (SELECT key FROM locked)""".encode(),  # noqa: S608 — our names
        (most, bounds.used_after, excess),
    )
    return found.rowcount == most


def _columns(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _blob(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(blob: bytes) -> str:
    return blob.decode("utf-8", "surrogatepass")
