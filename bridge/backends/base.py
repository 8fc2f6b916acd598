"""Who answers a turn. Every client protocol works with every backend, because both speak Turn and TurnEvent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from bridge.turn.events import TurnEvent
from bridge.turn.models import ModelChoice
from bridge.turn.turn import Turn


class EventStream(Protocol):
    """A turn that runs: `next` until the batch that ends with Finished, then (or when nobody listens) `close`."""

    async def next(self) -> list[TurnEvent]:
        """At least one event. Safe to cancel."""

    def close(self) -> None:
        """Let go; a turn that still runs is interrupted."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a backend takes that not all do."""

    sampling: bool = False
    """A temperature and a limit of tokens."""
    counts_tokens: bool = False
    """It has no limit of tokens of its own, so the bridge counts and ends the answer at the client's limit."""
    hosted_tools: bool = False
    """Tools that the provider runs itself (file_search, mcp, …), passed on as they are."""
    provider_key: bool = False
    """A key that comes with the request."""
    any_model: bool = False
    """Names that no rule leads anywhere, as the default backend: its provider has models that nobody here lists."""


NOTHING_MORE = Abilities()


class Backend(Protocol):
    """One place that answers turns."""

    @property
    def name(self) -> str:
        """What the router and the log call it."""

    @property
    def takes(self) -> Abilities:
        """What it can be given that not everybody takes."""

    async def start(self, turn: Turn, req_id: str) -> EventStream:
        """Begin a turn. Raises a BridgeError when it cannot even begin."""

    def models(self) -> list[str]:
        """The models it serves, as far as known now."""

    def names(self) -> list[str]:
        """The names that a request may use for them; none where it is known that nothing could be answered."""

    def preferred(self) -> str | None:
        """The model for a request that names none; None when nothing is known."""

    def details(self, model: str) -> Mapping[str, Any]:
        """What is known of a model beside its name, by the members that GET /v1/models gives it."""

    def knows(self, name: str) -> bool:
        """Whether a name is one of its own."""

    def resolve(self, name: str) -> ModelChoice:
        """The model behind a name that leads here. One that it does not know is its provider's to judge."""

    def lists(self) -> tuple[object, ...] | None:
        """What it says of models is made from these objects, which are other ones whenever that may change.

        None before it knows any.
        """

    async def wait_until_known(self) -> None:
        """Until its models are known. Raises NotReady when it cannot be asked."""

    async def drops(self, turn: Turn) -> list[str]:
        """What a turn asks for that this backend will leave out, in words for a response header.

        Waits until that is known. Raises NotReady when it cannot be asked.
        """

    def rate_limits(self) -> Mapping[str, Any] | None:
        """What is known of the account's quota: `primary` and `secondary` windows, as Codex reports them."""

    async def read_rate_limits(self) -> Mapping[str, Any] | None:
        """The same, asked for now where that is possible."""

    def status(self) -> tuple[bool, str]:
        """(ready, why or why not)."""


class PlainBackend:
    """What most backends have to say of themselves: they take any model, leave nothing out, and know of no quota."""

    name: str
    takes: Abilities = NOTHING_MORE

    def models(self) -> list[str]:
        return []

    def names(self) -> list[str]:
        return self.models()

    def preferred(self) -> str | None:
        return next(iter(self.models()), None)

    def details(self, model: str) -> Mapping[str, Any]:
        return {}

    def knows(self, name: str) -> bool:
        return name.lower() in {model.lower() for model in self.models()}

    def resolve(self, name: str) -> ModelChoice:
        return ModelChoice(name, name)

    def lists(self) -> tuple[object, ...] | None:
        return ()

    async def wait_until_known(self) -> None:
        return

    async def drops(self, turn: Turn) -> list[str]:
        return []

    def rate_limits(self) -> Mapping[str, Any] | None:
        return None

    async def read_rate_limits(self) -> Mapping[str, Any] | None:
        return self.rate_limits()

    def status(self) -> tuple[bool, str]:
        return True, "nothing is known against it"
