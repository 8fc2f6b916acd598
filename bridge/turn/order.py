"""One item at a time: what a provider says while it makes a call waits until the call is complete.

Clients read a stream item by item; OpenAI's own never has two open at once. Providers rarely do otherwise: then the
first call streams, and the others come when they may.
"""

from __future__ import annotations

from bridge.turn.events import CallBegun, CallDelta, Finished, Restarted, ToolCall, TurnEvent


class ItemOrder:
    """Events in, the same events out, with those of a call that streams next to each other."""

    def __init__(self) -> None:
        self._open: str | None = None
        """The call that is being told."""
        self._begun: dict[str, tuple[CallBegun, list[str]]] = {}
        """Calls that have begun and are not told, with what has come of their arguments."""
        self._waiting: list[TurnEvent] = []

    def feed(self, events: list[TurnEvent]) -> list[TurnEvent]:
        """What may be told now."""
        if self._open is None and not self._begun and not any(isinstance(event, CallBegun) for event in events):
            return events
        out: list[TurnEvent] = []
        for event in events:
            self._add(event, out)
        return out

    def _add(self, event: TurnEvent, out: list[TurnEvent]) -> None:
        if isinstance(event, CallBegun):
            if self._open is None:
                self._open = event.id
                out.append(event)
            else:
                self._begun[event.id] = event, []
        elif isinstance(event, CallDelta):
            self._delta(event, out)
        elif isinstance(event, ToolCall) and event.id == self._open:
            self._open = None
            out.append(event)
            self._release(out)
        elif isinstance(event, Restarted):
            self._open = None
            self._begun.clear()
            self._waiting.clear()
            out.append(event)
        elif isinstance(event, Finished):
            self._release(out)
            for begun, pieces in self._begun.values():
                out += [begun, CallDelta(begun.id, pieces)] if pieces else [begun]
            out.append(event)
        else:
            if isinstance(event, ToolCall):
                self._begun.pop(event.id, None)
            (out if self._open is None else self._waiting).append(event)

    def _delta(self, event: CallDelta, out: list[TurnEvent]) -> None:
        if event.id == self._open:
            out.append(event)
            return
        begun, pieces = self._begun[event.id]
        pieces += event.pieces
        if self._open is None:
            del self._begun[event.id]
            self._open = event.id
            out += [begun, CallDelta(event.id, pieces)]

    def _release(self, out: list[TurnEvent]) -> None:
        out += self._waiting
        self._waiting.clear()
