"""What answers a turn. Every client protocol works with every backend, because both use Turn and TurnEvent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from bridge.core.events import TurnEvent
from bridge.core.models import ModelChoice
from bridge.core.turn import Turn


class EventStream(Protocol):
    """A running turn: call `next` until the batch that ends with Finished; `close` after it, or to end it early."""

    async def next(self) -> list[TurnEvent]:
        """At least one event. Safe to cancel."""

    def close(self) -> None:
        """Release the turn; if it still runs, it is interrupted."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a backend accepts that not all do."""

    sampling: bool = False
    """A temperature and a limit of output tokens."""
    counts_tokens: bool = False
    """It has no limit of output tokens, so the bridge counts them and ends the answer at the client's limit."""
    hosted_tools: bool = False
    """Tools that the provider runs itself (file_search, mcp, …), passed on unchanged."""
    documents: bool = False
    """Files such as PDFs (`Document`)."""
    provider_key: bool = False
    """A key in the request."""
    any_model: bool = False
    """As the default backend, any name that no rule routes: its provider has models that are not listed here."""


NOTHING_MORE = Abilities()


class Backend(Protocol):
    """Answers turns. A class that inherits from it gets the methods of a backend that accepts any model, ignores no
    field and reports no quota.
    """

    name: str
    """Its name in routing and in the log."""
    takes: Abilities = NOTHING_MORE

    async def start(self, turn: Turn, req_id: str) -> EventStream:
        """Begin a turn. Raises a BridgeError if it cannot begin."""

    def models(self) -> list[str]:
        """The models that it serves, as far as known now."""
        return []

    def names(self) -> list[str]:
        """The names that a request may use for them; none if it is known that it cannot answer."""
        return self.models()

    def preferred(self) -> str | None:
        """The model for a request that names none; None if unknown."""
        return next(iter(self.models()), None)

    def details(self, model: str) -> Mapping[str, Any]:
        """What is known of a model besides its name, as members of the answer of GET /v1/models."""
        return {}

    def knows(self, name: str) -> bool:
        """Whether a name is one of its own."""
        return name.lower() in {model.lower() for model in self.models()}

    def resolve(self, name: str) -> ModelChoice:
        """The model behind a name that is routed here. The provider decides about a name that is unknown here."""
        return ModelChoice(name, name)

    def lists(self) -> tuple[object, ...] | None:
        """The objects that its statements about models depend on: they are replaced whenever those may change.

        None before any model is known.
        """
        return ()

    async def wait_until_known(self) -> None:
        """Wait until its models are known. Raises NotReady if it cannot be asked."""
        return

    async def drops(self, turn: Turn) -> list[str]:
        """What a turn asks for that this backend ignores, as names for a response header.

        Waits until that is known. Raises NotReady if it cannot be asked.
        """
        return []

    def rate_limits(self) -> Mapping[str, Any] | None:
        """What is known of the account's quota: `primary` and `secondary` windows, as Codex reports them."""
        return None

    async def read_rate_limits(self) -> Mapping[str, Any] | None:
        """The same, requested now if possible."""
        return self.rate_limits()

    def status(self) -> tuple[bool, str]:
        """(ready, reason)."""
        return True, "nothing is known against it"
