"""A PostgreSQL database as the source or target of a copy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from bridge.errors import ConfigError
from bridge.store.copying import Contents
from bridge.store.engine import Unavailable
from bridge.store.key_store import KeyStore
from bridge.store.postgres import statements
from bridge.store.postgres.keys import KeyTable
from bridge.store.postgres.migrations import migrate
from bridge.store.postgres.server import Server, reason_of

# A copy takes as long as it takes.
BEGIN = """
BEGIN ISOLATION LEVEL REPEATABLE READ;
SET LOCAL statement_timeout = 0;
SET LOCAL idle_in_transaction_session_timeout = 0;
"""


class PostgresPlace:
    """See `Place`. Its name does not contain the URL, in which a password may be."""

    name = "The PostgreSQL database"

    def __init__(self, url: str) -> None:
        self._server = Server(url, migrate)
        self.keys: KeyStore = KeyTable(url)

    def exists(self) -> bool:
        return True

    @contextmanager
    def contents(self, *, create: bool) -> Iterator[Contents]:
        try:
            with self._server.connection() as connection:
                connection.deadline = math.inf
                connection.execute(BEGIN)
                yield Contents(connection, statements)
        except (psycopg.Error, Unavailable) as error:
            reason = str(error) if isinstance(error, Unavailable) else reason_of(error)
            raise ConfigError(f"{self.name} cannot be used: {reason}.") from None
