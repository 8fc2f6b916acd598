"""From a TurnEvent to the method of an encoder that writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, get_args

from bridge.core.events import (
    CallBegun,
    CallDelta,
    Finished,
    ReasoningDelta,
    ReasoningDone,
    Restarted,
    TextDelta,
    TextDone,
    ToolCall,
    TurnEvent,
    UsageUpdate,
    WebSearch,
)

_METHODS: Mapping[type, str] = {
    TextDelta: "_text",
    TextDone: "_text_done",
    ReasoningDelta: "_reasoning",
    ReasoningDone: "_reasoning_done",
    CallBegun: "_call_begun",
    CallDelta: "_call_delta",
    ToolCall: "_tool_call",
    WebSearch: "_web_search",
    UsageUpdate: "_usage",
    Restarted: "_restart",
    Finished: "_finish",
}


def _ignore(encoder: EventEncoder, event: TurnEvent) -> None:
    pass


class EventEncoder:
    """Calls one method for each event, until `finished`. An encoder ignores the kinds whose method it does not have.

    One lookup by the type of the event: this is the hot path, and a chain of `isinstance` costs more with each kind.
    """

    _handlers: ClassVar[Mapping[type, Callable[[Any, Any], None]]]

    def __init__(self) -> None:
        self.finished = False

    def __init_subclass__(cls) -> None:
        cls._handlers = {kind: getattr(cls, _METHODS.get(kind, ""), _ignore) for kind in get_args(TurnEvent)}

    def _encode(self, events: Iterable[TurnEvent]) -> None:
        handlers = self._handlers
        for event in events:
            if self.finished:
                break
            handlers[type(event)](self, event)
