"""What a queued store needs of a database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from bridge.store.base import UsageRow
from bridge.store.changes import Batch, ConversationEntry, ResponseEntry


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


class Database(Protocol):
    """Responses, conversations and usage in tables. Every method blocks, and may raise `Unavailable`."""

    @property
    def in_memory(self) -> bool:
        """Whether it is fast enough for the event loop."""

    def close(self) -> None:
        """Close it for good."""

    def read_response(self, scope: str, id: str) -> ResponseEntry | None:
        """A response, expired or not."""

    def read_chain(self, scope: str, id: str) -> dict[str, ResponseEntry]:
        """A response and what it continues by their ids, as far as the database has it."""

    def read_holders(self, scope: str, item_id: str) -> list[str]:
        """The ids of the responses that hold an item, newest first."""

    def read_conversation(
        self, scope: str, id: str, *, items: bool = False, item: str | None = None
    ) -> ConversationEntry | None:
        """A conversation, expired or not, with all its items, or with that one, or with none."""

    def read_usage(self, since: str) -> list[UsageRow]:
        """The rows from that day on."""

    def write(self, batch: Batch, bounds: Bounds, *, clean: bool) -> bool:
        """Write a batch whole or not at all, and remove what is outside the bounds; whether more has to be removed.

        Unless `clean`, the second may wait for a later write.
        """

    def shrink(self) -> None:
        """Return free space to the system. Called while there is nothing else to do."""
