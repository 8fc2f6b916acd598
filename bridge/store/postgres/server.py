"""Connections to a PostgreSQL server: opened when they are needed, kept, replaced when they break, never waited for
without a limit. Everything here blocks and runs in worker threads.
"""

from __future__ import annotations

import math
import select
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus
from psycopg.waiting import Ready, Wait

from bridge.store.engine import Unavailable

T = TypeVar("T")

CONNECTIONS = 8
"""How many one process opens at most: with more, a database that is behind falls further behind."""
CONNECT_SECONDS = 3
LIMIT = 10.0
"""Seconds for one piece of work. The server ends a statement a little earlier, and a transaction that waits for us."""
ATTEMPTS = 4
"""How often work is repeated that lost a conflict with another bridge."""

# A bridge that freezes in a transaction loses its locks before others give up waiting for them.
SESSION = """
SET statement_timeout = '8s';
SET lock_timeout = '4s';
SET idle_in_transaction_session_timeout = '3s';
SET client_min_messages = warning;
"""
NETWORK: dict[str, Any] = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 8_000,
}
"""A server that has vanished is noticed within about ten seconds."""

CONFLICTS = (errors.DeadlockDetected, errors.SerializationFailure, errors.UniqueViolation)
OUR_DATA = (psycopg.DataError, psycopg.IntegrityError)
"""A change that the server will never accept. Any other failure may pass."""


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose waits end. psycopg waits as long as the server's kernel answers, even for a frozen server."""

    deadline = 0.0

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        poller = select.poll()
        try:
            state = next(gen)
            while True:
                poller.register(self.pgconn.socket, _EVENTS[state])
                left = max(self.deadline - time.monotonic(), 0)
                ready = poller.poll(None if left == math.inf else left * 1000)
                if not ready:
                    raise psycopg.OperationalError("PostgreSQL does not answer")
                state = gen.send(_ready(state, ready[0][1]))
        except StopIteration as end:
            value: T = end.value
            return value


_EVENTS = {Wait.R: select.POLLIN, Wait.W: select.POLLOUT, Wait.RW: select.POLLIN | select.POLLOUT}


def _ready(state: int, events: int) -> int:
    """What psycopg calls these events of a socket. After an error, reading or writing tells which one it was."""
    ready = (Ready.R if events & select.POLLIN else 0) | (Ready.W if events & select.POLLOUT else 0)
    return ready & state or state


class Server:
    """Runs work on a connection to the database of a URL. Safe to use from several threads.

    `prepare` is called with the first connection, and with the next ones until it has succeeded. The URL may contain a
    password: it is in no message and in no repr.
    """

    def __init__(
        self, url: str, prepare: Callable[[Connection], object] | None = None, *, limit: float = LIMIT
    ) -> None:
        self._url = url
        self._limit = limit
        self._prepare = prepare
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._closed = False

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections, and every other when its work is done."""
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for connection in idle:
            connection.close()

    def do(self, work: Callable[[Connection], T], *, attempts: int = ATTEMPTS) -> T:
        """Call `work` with a connection. `Unavailable` when the database cannot do it now.

        `work` is repeated when it lost a conflict or its connection. So it must do no harm when the server has done it
        before; otherwise allow one attempt.
        """
        for attempt in range(1, attempts + 1):
            connection = self._take()
            try:
                return work(connection)
            except CONFLICTS as error:
                if attempt == attempts:
                    if isinstance(error, OUR_DATA):
                        raise
                    raise Unavailable(reason_of(error)) from error
            except OUR_DATA:
                raise
            except psycopg.Error as error:
                if not connection.broken or attempt == attempts:
                    raise Unavailable(reason_of(error)) from error
                self._drop_idle()  # if the server was restarted, the others are broken, too
            finally:
                self._give_back(connection)
        raise AssertionError

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection for a longer piece of work, which is never repeated."""
        connection = self._take()
        try:
            yield connection
        finally:
            self._give_back(connection)

    def _take(self) -> Connection:
        with self._lock:
            found = self._idle.pop() if self._idle else None
        connection = found or self._connect()
        connection.deadline = time.monotonic() + self._limit
        return connection

    def _give_back(self, connection: Connection) -> None:
        """Keep a connection, unless work on it was cut short: closing it ends the transaction."""
        if connection.closed or connection.pgconn.transaction_status != TransactionStatus.IDLE:
            connection.close()
            return
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _connect(self) -> Connection:
        try:
            connection = Connection.connect(
                self._url,
                autocommit=True,
                # Prepared statements do not survive a pooler such as PgBouncer between us and the server.
                prepare_threshold=None,
                connect_timeout=CONNECT_SECONDS,
                application_name="turnbridge",
                client_encoding="utf8",
                **NETWORK,
            )
        except (psycopg.Error, OSError) as error:
            raise Unavailable(reason_of(error)) from None
        try:
            connection.deadline = time.monotonic() + self._limit
            connection.execute(SESSION)
            with self._lock:
                prepare = self._prepare
            if prepare is not None:
                prepare(connection)
                self._prepare = None
        except BaseException as error:
            connection.close()
            if isinstance(error, psycopg.Error):
                raise Unavailable(reason_of(error)) from error
            raise
        return connection


def reason_of(error: Exception) -> str:
    """What PostgreSQL or its driver says, in one line, without the data that it is about."""
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    text = primary or str(error).strip() or type(error).__name__
    return text.splitlines()[0].removeprefix("connection failed: ").strip()[:300]
