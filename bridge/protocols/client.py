"""What a client protocol consists of. Each package of a protocol has one `ClientProtocol`; `registry` lists them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from bridge.core.backend import Abilities
from bridge.core.events import TurnEvent, Usage
from bridge.core.turn import Turn
from bridge.errors import BridgeError

Json = dict[str, Any]
NewId = Callable[[str], str]
ReasoningDisplay = Literal["content", "think", "hidden"]
"""Where reasoning is shown: as `reasoning_content`, between <think> tags in the text, or not at all."""


class Encoder(Protocol):
    """TurnEvents in, one protocol's bytes out; exactly one terminal event.

    `feed` may be called until `finished`; events after the end are ignored. `body` is the non-streamed answer: the
    same events, collected.
    """

    finished: bool
    failure: BridgeError | None

    @property
    def visible(self) -> bool:
        """Whether part of the answer itself has been encoded. After that a failure cannot be a status code."""

    @property
    def usage(self) -> Usage | None:
        """The turn's usage so far."""

    def begin(self) -> bytes:
        """The bytes before the first piece of the answer."""

    def feed(self, events: list[TurnEvent]) -> bytes:
        """The bytes for a batch of events, in order."""

    def body(self) -> bytes:
        """The non-streamed answer. Call it after the end, and only if the answer did not fail."""


@dataclass(frozen=True, slots=True)
class AnswerContext:
    """What an encoder needs that is not in the request: ids, the clock and settings of the operator."""

    new_id: NewId
    now: Callable[[], float]
    reasoning: ReasoningDisplay = "content"
    stored: bool = False
    """Whether the answer is kept, so that a later request can continue it."""


@dataclass(frozen=True, slots=True)
class ClientProtocol:
    """One protocol: how its requests are parsed and its answers written, and its entry in /openapi.json.

    `parse(body, context)` returns a turn whose model is the name in the body: the exchange resolves it, because only
    that knows what this client may use. `context` has the items of the response that the request continues.
    """

    name: str
    """The name in the log and in metrics, and of the request body in `bridge.protocols.openapi.requests.BODIES`."""
    path: str
    parse: Callable[[Json, Sequence[Json]], Turn]
    make_encoder: Callable[[Turn, Json, AnswerContext], Encoder]
    dropped_fields: Callable[[Json, Turn, Abilities], list[str]]
    """Names of the fields in a body that have no effect on such a backend."""
    operation: str
    summary: str
    description: str
    answer: str
    """The schema of a JSON answer in /openapi.json."""
    tag: str
    error_body: Callable[[BridgeError], Json] = BridgeError.body
    keeps_answers: bool = False
    """Whether answers can be stored, continued and run in the background. Such an encoder is a `ResponsesEncoder`."""
