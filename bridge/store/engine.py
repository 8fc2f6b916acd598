"""What a queued store needs of a database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from bridge.store.base import UsageRow
from bridge.store.changes import Batch, ConversationEntry, ResponseEntry

T = TypeVar("T")


class Unavailable(Exception):
    """The database cannot be read or written at the moment; the message tells the operator why."""


class Uncertain(Unavailable):
    """The same, and the batch may have been written. It must be repeated as it is, and is then written only once."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What may stay in the database; the rest is removed."""

    used_after: float
    """Responses and conversations that were not used since then have expired."""
    max_bytes: int
    first_day: str


class Tables(Protocol):
    """The SQL of a kind of database: a module `statements`. Every function takes the connection first and blocks."""

    def read_response(self, connection: Any, scope: str, id: str) -> ResponseEntry | None:
        """A response, expired or not."""

    def read_chain(self, connection: Any, scope: str, id: str) -> dict[str, ResponseEntry]:
        """A response and what it continues by their ids, as far as the database has it."""

    def read_holders(self, connection: Any, scope: str, item_id: str) -> list[str]:
        """The ids of the responses that hold an item, newest first."""

    def read_conversation(
        self, connection: Any, scope: str, id: str, *, items: bool = False, item: str | None = None
    ) -> ConversationEntry | None:
        """A conversation, expired or not, with all its items, or with that one, or with none."""

    def read_usage(self, connection: Any, since: str) -> list[UsageRow]:
        """The rows from that day on."""

    def read_all(self, connection: Any) -> Iterator[Batch]:
        """Everything, oldest first, as batches that write it to an empty database. In a transaction that has begun."""

    def count_rows(self, connection: Any) -> dict[str, int]:
        """How many rows the tables have."""

    def delete_all(self, connection: Any) -> None:
        """Empty the tables, in a transaction that has begun."""

    def add(self, connection: Any, batch: Batch) -> None:
        """Write a batch in a transaction that has begun."""


class Database(ABC):
    """Responses, conversations and usage in tables. Every method blocks, and may raise `Unavailable`."""

    in_memory = False
    """Whether it is fast enough for the event loop."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    @abstractmethod
    def do(self, work: Callable[[Any], T]) -> T:
        """Call `work` with a connection."""

    @abstractmethod
    def write(self, batch: Batch, bounds: Bounds, *, clean: bool) -> bool:
        """Write a batch whole or not at all, and remove what is outside the bounds; whether more has to be removed.

        Unless `clean`, the second may wait for a later write.
        """

    @abstractmethod
    def shrink(self) -> None:
        """Return free space to the system. Called while there is nothing else to do."""

    @abstractmethod
    def close(self) -> None:
        """Close it for good."""

    def read_response(self, scope: str, id: str) -> ResponseEntry | None:
        return self.do(lambda connection: self._tables.read_response(connection, scope, id))

    def read_chain(self, scope: str, id: str) -> dict[str, ResponseEntry]:
        return self.do(lambda connection: self._tables.read_chain(connection, scope, id))

    def read_holders(self, scope: str, item_id: str) -> list[str]:
        return self.do(lambda connection: self._tables.read_holders(connection, scope, item_id))

    def read_conversation(
        self, scope: str, id: str, *, items: bool = False, item: str | None = None
    ) -> ConversationEntry | None:
        return self.do(lambda connection: self._tables.read_conversation(connection, scope, id, items=items, item=item))

    def read_usage(self, since: str) -> list[UsageRow]:
        return self.do(lambda connection: self._tables.read_usage(connection, since))
