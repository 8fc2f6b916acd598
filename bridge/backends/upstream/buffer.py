"""What a provider's stream says, decoded: the events of one answer, with calls that stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

import orjson

from bridge.backends.upstream.sse import SseReader
from bridge.errors import UpstreamError
from bridge.turn.buffer import EventBuffer
from bridge.turn.events import CallBegun, CallDelta, ToolCall, TurnEvent
from bridge.turn.order import ItemOrder

CHANGED_ARGUMENTS = "The provider sent the arguments of a call in pieces, and then others as the whole. Try again."


@dataclass(slots=True)
class _OpenCall:
    """The arguments that have come of a call, and how many of their characters were told."""

    pieces: list[str] = field(default_factory=list)
    told: int = 0


class UpstreamBuffer(EventBuffer, ABC):
    """One answer. `receive` is given the data of one event at a time."""

    reader: type[SseReader] = SseReader
    """What takes the body apart."""

    def __init__(self) -> None:
        super().__init__()
        self._order = ItemOrder()
        self._open_calls: dict[str, _OpenCall] = {}

    @abstractmethod
    def receive(self, data: bytes) -> None:
        """Take one event in. Raises UpstreamError for one that makes no sense."""

    def over(self, *, told: bool) -> None:
        """Nothing more comes: `told` by `[DONE]`, or the body just ended. For APIs whose last event cannot be known."""

    def take(self) -> list[TurnEvent]:
        """All events since the last call. What comes in the middle of a call waits for its end."""
        return self._order.feed(super().take())

    def call_begun(self, call: CallBegun) -> None:
        """The model begins to call a function of the client's; `called` tells the end."""
        self._said = True
        self._streamed.setdefault(call.id, 0)
        self._open_calls[call.id] = _OpenCall()
        self.add(call)

    def call_delta(self, call: str, piece: str) -> None:
        """A piece of the arguments of a call that has begun. White space waits: alone it is no arguments at all."""
        opened = self._open_calls[call]
        opened.pieces.append(piece)
        self._size += len(piece)
        if not opened.told:
            if not piece.strip():
                return
            piece = "".join(opened.pieces)
        opened.told += len(piece)
        last = self._events[-1] if self._events else None
        if isinstance(last, CallDelta) and last.id == call:
            last.pieces.append(piece)
        else:
            self.add(CallDelta(call, [piece]))

    def arguments_of(self, call: str) -> str:
        """What has come of the arguments of a call that has begun."""
        return "".join(self._open_calls[call].pieces)

    def called(self, call: ToolCall) -> None:
        opened = self._open_calls.pop(call.id, None)
        if opened is not None:
            told = "".join(opened.pieces)[: opened.told]
            if not call.arguments.startswith(told):
                # What was sent cannot be taken back. It stands if it means the same; else nobody may run the call.
                if not _is_same_json(told, call.arguments):
                    return self.fail(UpstreamError(CHANGED_ARGUMENTS, code="broken_event"))
                call = replace(call, arguments=told)
        return super().called(call)


def _is_same_json(one: str, other: str) -> bool:
    try:
        return bool(orjson.loads(one) == orjson.loads(other))
    except orjson.JSONDecodeError:
        return False
