"""The keys of clients in PostgreSQL: every bridge on the database accepts them, until they are revoked."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from pydantic import ValidationError

from bridge.errors import ConfigError
from bridge.store.engine import Unavailable
from bridge.store.key_store import ClientKey, KeysUnavailable, Mark, check_room, find_key, make_key
from bridge.store.postgres.migrations import migrate
from bridge.store.postgres.server import ATTEMPTS, Connection, Server

T = TypeVar("T")


class KeyTable:
    """See `KeyStore`. It has a connection of its own, which a busy store cannot take away."""

    is_remote = True

    def __init__(self, url: str) -> None:
        self._server = Server(url, migrate)

    def mark(self) -> Mark:
        rows = self._do(lambda connection: connection.execute("SELECT version FROM turnbridge.client_keys").fetchall())
        return tuple(version for (version,) in rows)

    def read(self) -> tuple[ClientKey, ...]:
        return self._do(_read)

    def add(self, name: str, *, now: datetime, **allowance: object) -> tuple[str, ClientKey]:
        key, entry = make_key(name, now=now, **allowance)

        def work(connection: Connection) -> None:
            _begin_change(connection)
            check_room(_read(connection), name)
            _insert(connection, entry)
            connection.execute("COMMIT")

        self._do(work, attempts=1)
        return key, entry

    def revoke(self, name: str) -> ClientKey:
        def work(connection: Connection) -> ClientKey:
            _begin_change(connection)
            found = find_key(_read(connection), name)
            connection.execute("DELETE FROM turnbridge.client_key WHERE name = %s", (name,))
            connection.execute("COMMIT")
            return found

        return self._do(work, attempts=1)

    def write(self, keys: tuple[ClientKey, ...]) -> None:
        """Replace all keys."""

        def work(connection: Connection) -> None:
            _begin_change(connection)
            connection.execute("DELETE FROM turnbridge.client_key")
            for key in keys:
                _insert(connection, key)
            connection.execute("COMMIT")

        self._do(work)

    def _do(self, work: Callable[[Connection], T], *, attempts: int = ATTEMPTS) -> T:
        try:
            return self._server.do(work, attempts=attempts)
        except Unavailable as error:
            raise KeysUnavailable(f"The keys in PostgreSQL cannot be used: {error}.") from None


def _begin_change(connection: Connection) -> None:
    """Begin a transaction that is alone with the keys, and after which every bridge reads them again."""
    connection.execute("BEGIN")
    connection.execute("UPDATE turnbridge.client_keys SET version = version + 1")


def _insert(connection: Connection, key: ClientKey) -> None:
    entry = key.model_dump_json(exclude_none=True)
    connection.execute("INSERT INTO turnbridge.client_key VALUES (%s, %s, %s)", (key.name, key.sha256, entry))


def _read(connection: Connection) -> tuple[ClientKey, ...]:
    rows = connection.execute("SELECT entry FROM turnbridge.client_key ORDER BY name").fetchall()
    try:
        return tuple(ClientKey.model_validate_json(entry) for (entry,) in rows)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        raise ConfigError(
            f"The keys in PostgreSQL cannot be used: {fault['msg']}. If a newer turnbridge wrote them, use that "
            "version; otherwise delete the rows of turnbridge.client_key and create the keys again."
        ) from None
