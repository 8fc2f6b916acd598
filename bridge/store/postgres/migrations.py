"""The tables in PostgreSQL, as a list of numbered migrations.

A migration is never changed once it is released; a new one is appended. Bridges of the version before may still run
while it is applied, so it must leave them working: it adds tables and columns, and removes what no bridge has used
since the last release.
"""

from __future__ import annotations

import psycopg
from psycopg import errors

from bridge.errors import ConfigError
from bridge.store.engine import Unavailable
from bridge.store.postgres.server import Connection, Server, reason_of

LOCK = 0x7475726E62
"""The number of the advisory lock under which migrations are applied ("turnb")."""

# Ids are bytes: PostgreSQL's text cannot hold every Python string. They may be of any length, which an index cannot, so
# rows are found by digests (`statements.digest`). Large bodies are kept apart by PostgreSQL itself, so that renewing a
# response does not write them again. The numbers tell what is newer.
MIGRATIONS = (
    """
    CREATE TABLE turnbridge.response (
        key bytea PRIMARY KEY,
        number bigint GENERATED ALWAYS AS IDENTITY,
        scope bytea NOT NULL,
        id bytea NOT NULL,
        previous bytea,
        previous_key bytea,
        conversation bytea,
        created_at bigint NOT NULL,
        used double precision NOT NULL,
        size bigint NOT NULL,
        body bytea NOT NULL,
        input bytea NOT NULL
    );
    CREATE INDEX response_by_use ON turnbridge.response (used, number);
    CREATE TABLE turnbridge.response_item (
        item bytea NOT NULL,
        response bytea NOT NULL REFERENCES turnbridge.response ON DELETE CASCADE,
        PRIMARY KEY (item, response)
    );
    CREATE INDEX response_item_by_response ON turnbridge.response_item (response);
    CREATE TABLE turnbridge.conversation (
        key bytea PRIMARY KEY,
        number bigint GENERATED ALWAYS AS IDENTITY,
        scope bytea NOT NULL,
        id bytea NOT NULL,
        created_at bigint NOT NULL,
        metadata bytea NOT NULL,
        used double precision NOT NULL,
        size bigint NOT NULL
    );
    CREATE INDEX conversation_by_use ON turnbridge.conversation (used, number);
    CREATE TABLE turnbridge.conversation_item (
        conversation bytea NOT NULL REFERENCES turnbridge.conversation ON DELETE CASCADE,
        key bytea NOT NULL,
        number bigint GENERATED ALWAYS AS IDENTITY,
        id bytea NOT NULL,
        body bytea NOT NULL,
        PRIMARY KEY (conversation, key)
    );
    CREATE TABLE turnbridge.usage (
        key bytea PRIMARY KEY,
        day bytea NOT NULL,
        client bytea NOT NULL,
        model bytea NOT NULL,
        requests bigint NOT NULL,
        failed bigint NOT NULL,
        input bigint NOT NULL,
        cached bigint NOT NULL,
        output bigint NOT NULL,
        reasoning bigint NOT NULL
    );
    CREATE INDEX usage_by_day ON turnbridge.usage (day);
    CREATE TABLE turnbridge.writer (
        id bytea PRIMARY KEY,
        batch bigint NOT NULL,
        seen timestamptz NOT NULL DEFAULT now()
    );
    CREATE TABLE turnbridge.client_key (
        name text PRIMARY KEY,
        sha256 text NOT NULL UNIQUE,
        entry text NOT NULL
    );
    CREATE TABLE turnbridge.client_keys (version bigint NOT NULL);
    INSERT INTO turnbridge.client_keys VALUES (1);
    """,
)
LATEST = len(MIGRATIONS)


def read_version(connection: Connection) -> int:
    """How many migrations the database has; 0 if it has no tables of ours."""
    # Not `to_regclass`: after a wait for the lock it would answer from an old cache.
    found = connection.execute(
        """SELECT 1 FROM pg_catalog.pg_class found JOIN pg_catalog.pg_namespace schema ON schema.oid = relnamespace
        WHERE nspname = 'turnbridge' AND relname = 'schema_version'"""
    ).fetchone()
    if found is None:
        return 0
    row = connection.execute("SELECT max(version) FROM turnbridge.schema_version").fetchone()
    return int(row[0]) if row and row[0] else 0


def check_version(version: int) -> None:
    """Raise ConfigError for the tables of a newer version."""
    if version > LATEST:
        raise ConfigError(
            f"The PostgreSQL store was written by a newer turnbridge (schema {version}; this version knows {LATEST}). "
            "Use the newer version, or another database."
        )


def migrate(connection: Connection) -> int:
    """Apply the migrations that are missing, in one transaction; how many there were.

    Of several bridges that start at once, one applies them and the others wait. Raises ConfigError for tables of a
    newer version, and for a user who may not create any.
    """
    version = read_version(connection)
    check_version(version)
    if version == LATEST:
        return 0
    try:
        connection.execute("BEGIN")
        # Held until the end of the transaction, and so for no longer than the connection lives.
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        version = read_version(connection)
        check_version(version)
        if version == 0:
            connection.execute("CREATE SCHEMA IF NOT EXISTS turnbridge")
            connection.execute(
                "CREATE TABLE turnbridge.schema_version (version int PRIMARY KEY, applied timestamptz DEFAULT now())"
            )
        for number, statements in enumerate(MIGRATIONS[version:], version + 1):
            connection.execute(statements.encode())
            connection.execute("INSERT INTO turnbridge.schema_version VALUES (%s)", (number,))
        connection.execute("COMMIT")
    except errors.InsufficientPrivilege as error:
        raise ConfigError(
            f"The PostgreSQL store needs tables that this user may not create ({reason_of(error)}). Run "
            "`turnbridge store migrate` as a user who may, or make this user the owner of a schema `turnbridge`."
        ) from None
    except psycopg.Error as error:
        raise Unavailable(f"The tables cannot be created: {reason_of(error)}") from error
    return LATEST - version


def migrate_server(url: str) -> tuple[int, int]:
    """Apply what is missing in the database of a URL: (how many migrations, the version now). Raises ConfigError."""
    try:
        with Server(url).connection() as connection:
            return migrate(connection), read_version(connection)
    except Unavailable as error:
        raise ConfigError(f"PostgreSQL cannot be used: {error}.") from None
