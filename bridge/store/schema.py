"""The tables of a store's file, and making sure that a file has them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from bridge.errors import ConfigError

APPLICATION = 0x63647862
"""Marks the file as ours ("cdxb"), for `file` and for this program."""
VERSION = 1

# Ids are blobs: a text of SQLite's cannot hold everything that a Python string can.
# Contents stand apart from what is looked up and renewed, so that a renewal does not write them again.
# The total is kept by triggers, so that several processes agree on it; 256 is `kept.ROW_SIZE`.
TABLES = [
    """CREATE TABLE response (
        number INTEGER PRIMARY KEY,
        scope BLOB NOT NULL,
        id BLOB NOT NULL,
        created_at INTEGER NOT NULL,
        previous BLOB,
        conversation BLOB,
        used REAL NOT NULL,
        size INTEGER NOT NULL,
        UNIQUE (scope, id)
    )""",
    "CREATE INDEX response_by_use ON response (used, number)",
    "CREATE TABLE content (number INTEGER PRIMARY KEY, body BLOB NOT NULL, input BLOB NOT NULL)",
    """CREATE TABLE response_item (
        scope BLOB NOT NULL,
        id BLOB NOT NULL,
        number INTEGER NOT NULL,
        PRIMARY KEY (scope, id, number)
    ) WITHOUT ROWID""",
    "CREATE INDEX response_item_by_response ON response_item (number)",
    """CREATE TABLE conversation (
        number INTEGER PRIMARY KEY,
        scope BLOB NOT NULL,
        id BLOB NOT NULL,
        created_at INTEGER NOT NULL,
        metadata BLOB NOT NULL,
        used REAL NOT NULL,
        UNIQUE (scope, id)
    )""",
    "CREATE INDEX conversation_by_use ON conversation (used, number)",
    """CREATE TABLE conversation_item (
        number INTEGER PRIMARY KEY,
        conversation INTEGER NOT NULL,
        id BLOB NOT NULL,
        body BLOB NOT NULL,
        UNIQUE (conversation, id)
    )""",
    """CREATE TABLE usage (
        day BLOB NOT NULL,
        key BLOB NOT NULL,
        model BLOB NOT NULL,
        requests INTEGER NOT NULL,
        failed INTEGER NOT NULL,
        input INTEGER NOT NULL,
        cached INTEGER NOT NULL,
        output INTEGER NOT NULL,
        reasoning INTEGER NOT NULL,
        PRIMARY KEY (day, key, model)
    ) WITHOUT ROWID""",
    "CREATE TABLE total (bytes INTEGER NOT NULL)",
    "INSERT INTO total VALUES (0)",
    """CREATE TRIGGER response_added AFTER INSERT ON response BEGIN
        UPDATE total SET bytes = bytes + new.size;
    END""",
    """CREATE TRIGGER response_removed AFTER DELETE ON response BEGIN
        UPDATE total SET bytes = bytes - old.size;
        DELETE FROM content WHERE number = old.number;
        DELETE FROM response_item WHERE number = old.number;
    END""",
    """CREATE TRIGGER conversation_added AFTER INSERT ON conversation BEGIN
        UPDATE total SET bytes = bytes + 256 + length(new.metadata);
    END""",
    """CREATE TRIGGER conversation_changed AFTER UPDATE OF metadata ON conversation BEGIN
        UPDATE total SET bytes = bytes + length(new.metadata) - length(old.metadata);
    END""",
    """CREATE TRIGGER conversation_removed AFTER DELETE ON conversation BEGIN
        UPDATE total SET bytes = bytes - 256 - length(old.metadata);
        DELETE FROM conversation_item WHERE conversation = old.number;
    END""",
    """CREATE TRIGGER item_added AFTER INSERT ON conversation_item BEGIN
        UPDATE total SET bytes = bytes + length(new.body);
    END""",
    """CREATE TRIGGER item_changed AFTER UPDATE OF body ON conversation_item BEGIN
        UPDATE total SET bytes = bytes + length(new.body) - length(old.body);
    END""",
    """CREATE TRIGGER item_removed AFTER DELETE ON conversation_item BEGIN
        UPDATE total SET bytes = bytes - length(old.body);
    END""",
]


def prepare(connection: sqlite3.Connection, name: str) -> None:
    """Settings of a new connection; the tables where the file is empty. `ConfigError` for a file that is not for us."""
    connection.execute("PRAGMA busy_timeout = 1000")
    connection.execute("PRAGMA synchronous = NORMAL")
    # The pages worth keeping are few; the contents are read once.
    connection.execute("PRAGMA cache_size = -1000")
    connection.execute("PRAGMA journal_size_limit = 16777216")
    version = _number(connection, "user_version")
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if version > VERSION:
        raise ConfigError(
            f"The store {name} was written by a newer codex-bridge (schema {version}, this one knows {VERSION}). "
            "Use that version, or another file."
        )
    if tables and (version < 1 or _number(connection, "application_id") != APPLICATION):
        raise ConfigError(f"The file {name} is a database of another program. Choose another file for the store.")
    if not tables:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL")
    if not tables:
        with transaction(connection):
            for statement in TABLES:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {VERSION}")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Everything inside is written, or nothing. Takes the file's write lock at once."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        # A failed COMMIT may leave the transaction open; other failures have ended it already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    number: int = connection.execute(f"PRAGMA {pragma}").fetchone()[0]
    return number
