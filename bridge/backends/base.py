"""Who answers a turn. Every client protocol works with every backend, because both speak Turn and TurnEvent."""

from __future__ import annotations

from typing import Protocol

from bridge.turn.events import TurnEvent
from bridge.turn.turn import Turn


class EventStream(Protocol):
    """A turn that runs: `next` until the batch that ends with Finished, then (or when nobody listens) `close`."""

    async def next(self) -> list[TurnEvent]:
        """At least one event. Safe to cancel."""

    def close(self) -> None:
        """Let go; a turn that still runs is interrupted."""


class Backend(Protocol):
    """One place that answers turns."""

    name: str

    async def start(self, turn: Turn, req_id: str) -> EventStream:
        """Begin a turn. Raises a BridgeError when it cannot even begin."""

    def models(self) -> list[str]:
        """The models it serves, as far as known now."""

    def status(self) -> tuple[bool, str]:
        """(ready, why or why not)."""
