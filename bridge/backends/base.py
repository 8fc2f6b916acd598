"""Who answers a turn. Every client protocol works with every backend, because both speak Turn and TurnEvent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

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

    def drops(self, turn: Turn) -> list[str]:
        """What a turn asks for that this backend will leave out, in words for a response header."""

    def rate_limits(self) -> Mapping[str, Any] | None:
        """What is known of the account's quota: `primary` and `secondary` windows, as Codex reports them."""

    def status(self) -> tuple[bool, str]:
        """(ready, why or why not)."""
