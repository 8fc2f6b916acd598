"""The events of an answer in progress: pieces are joined to runs, and there is one end.

Consumers call `take`; decoders call everything else. After `finish` no event is added.
"""

from __future__ import annotations

from typing import Any

from bridge.core.events import (
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
from bridge.errors import BridgeError, UpstreamError

MAX_TOKENS = 2**53
LARGE = 1024 * 1024
"""A text with more characters than this is taken event by event: its last event repeats all of it."""
FEW = 64
"""At most this number of events are taken one by one; among more, none is large."""


class EventBuffer:
    """The events since the last `take`, in order."""

    def __init__(self) -> None:
        self.finished = False
        self.ended = False
        """Whether the backend itself has ended the turn, so that there is nothing to interrupt."""
        self._events: list[TurnEvent] = []
        self._size = 0
        self._item: str | None = None
        self._pieces: list[str] = []
        self._streamed: dict[str, int] = {}
        self._said = False
        self._failure: Finished | None = None

    def take(self) -> list[TurnEvent]:
        """All events since the last call."""
        events, self._events = self._events, []
        self._item = None
        self._size = 0
        return events

    def take_some(self) -> list[TurnEvent]:
        """Like `take`, but of a few large events only the first, so that not all of them are encoded at once."""
        if not 1 < len(self._events) <= FEW or max(self._size, sum(self._streamed.values())) <= LARGE:
            return self.take()
        first, self._events = self._events[:1], self._events[1:]
        return first

    @property
    def size(self) -> int:
        """The number of characters that have not been taken."""
        return self._size

    def text(self, item: str, delta: str) -> None:
        """A piece of the assistant's text. The hottest function of the program: once per token."""
        if item == self._item:
            self._pieces.append(delta)
        else:
            self._open_run(item, delta)
        self._size += len(delta)
        self._streamed[item] += len(delta)

    def text_done(self, item: str, full: str) -> None:
        """A message is complete; what was not streamed of it is added now. Raises TypeError for another shape."""
        if not isinstance(item, str) or not isinstance(full, str):
            raise TypeError(full)
        rest = full[self._streamed.get(item, 0) :]
        if rest:
            self.text(item, rest)
        if item in self._streamed:
            self.add(TextDone(item))

    def reasoning(self, item: str, index: int, delta: str, *, raw: bool) -> None:
        """A piece of a reasoning item. Raises TypeError for another shape."""
        if not isinstance(item, str) or not isinstance(delta, str) or not isinstance(index, int):
            raise TypeError(delta)
        last = self._events[-1] if self._events else None
        if (
            isinstance(last, ReasoningDelta)
            and last.item == item
            and last.index == index
            and last.raw == raw
            and self._item is None
        ):
            last.pieces.append(delta)
        else:
            self.add(ReasoningDelta(item, index, [delta], raw))
        self._streamed.setdefault(item, 0)
        self._size += len(delta)

    def reasoning_done(self, item: str, summary: list[str], content: list[str], *, more_to_come: bool = False) -> None:
        """A reasoning item is complete; if nothing of it was streamed it is added now.

        With `more_to_come` the caller adds the rest and the end.
        """
        if item not in self._streamed:
            for index, part in enumerate(summary):
                self.reasoning(item, index, part, raw=False)
            for index, part in enumerate(content):
                self.reasoning(item, index, part, raw=True)
        if item in self._streamed and not more_to_come:
            self.add(ReasoningDone(item))

    def called(self, call: ToolCall) -> None:
        """The model has called a function of the client's."""
        self._said = True
        self._streamed.setdefault(call.id, 0)
        self._size += len(call.arguments)
        self.add(call)

    def searched(self, item: str, action: dict[str, Any]) -> None:
        """The provider has searched the web."""
        self._streamed.setdefault(item, 0)
        self.add(WebSearch(item, action))

    def restart(self, message: str) -> None:
        """The upstream retries: the items so far are void. No event if there are none."""
        if self._streamed:
            self._streamed.clear()
            self._said = False
            self.add(Restarted(message))

    def fail_later(self, failure: Finished) -> None:
        """Remember why the turn will fail. The backend still sends its own end of the turn."""
        self._failure = failure

    @property
    def will_fail(self) -> bool:
        """Whether a failure is remembered."""
        return self._failure is not None

    def complete(self) -> None:
        """The backend has ended the turn: success, unless a failure is remembered or there was no answer."""
        self.ended = True
        if self._failure is not None:
            self.finish(self._failure)
        elif self._said:
            self.finish(Finished("completed"))
        else:
            self.fail(UpstreamError("The model ended its turn without an answer.", code="empty_response"))

    def conclude(self) -> None:
        """The answer is complete although the backend has not ended the turn: end it, and let it be interrupted."""
        self.complete()
        self.ended = False

    def cancelled(self) -> None:
        """The backend reports that the turn was interrupted."""
        self.ended = True
        self.finish(Finished("cancelled"))

    def fail(self, error: BridgeError) -> None:
        """The turn ends with `error`."""
        self.finish(Finished("failed", error=error))

    def finish(self, end: Finished) -> None:
        """The one end of the turn; later ones are ignored."""
        if not self.finished:
            self.add(end)
            self.finished = True

    def usage(self, update: UsageUpdate) -> None:
        """Usage so far; absurd numbers, which JSON could not hold, are ignored."""
        usage = update.usage
        if max(usage.input, usage.cached, usage.output, usage.reasoning) < MAX_TOKENS:
            self.add(update)

    def add(self, event: TurnEvent) -> None:
        """Append one event, in order."""
        if self.finished:
            return
        self._item = None
        self._events.append(event)

    def _open_run(self, item: str, delta: str) -> None:
        self._streamed.setdefault(item, 0)
        self._said = True
        self._pieces = [delta]
        self.add(TextDelta(item, self._pieces))
        if not self.finished:
            self._item = item
