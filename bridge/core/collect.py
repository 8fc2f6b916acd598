"""Fold a turn's events into its final result: the same events, streamed or not, give the same answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bridge.core.events import (
    Acted,
    CallBegun,
    CallDelta,
    Finished,
    ReasoningDelta,
    ReasoningDone,
    Rerouted,
    Restarted,
    TextDelta,
    TextDone,
    ToolCall,
    TurnEvent,
    Usage,
    UsageUpdate,
    WebSearch,
)

MANY = 256
"""Pieces of a text are joined only beyond this number."""


def add_pieces(kept: list[str], new: list[str]) -> None:
    """Append pieces of a text, and join them from time to time: a short piece takes more memory than its characters.

    The longer the text, the more pieces are collected before a join, so that the total cost stays linear.
    """
    kept += new
    if len(kept) > MANY and 256 * len(kept) > len(kept[0]):
        kept[:] = ["".join(kept)]


@dataclass(slots=True)
class TextOutput:
    """An assistant message."""

    item: str
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.pieces)


@dataclass(slots=True)
class ReasoningOutput:
    """A reasoning item: summary parts and raw parts by index."""

    item: str
    summary: dict[int, list[str]] = field(default_factory=dict)
    content: dict[int, list[str]] = field(default_factory=dict)
    encrypted: str | None = None

    def summary_parts(self) -> list[str]:
        """The summary, part by part."""
        return ["".join(self.summary[index]) for index in sorted(self.summary)]

    def content_parts(self) -> list[str]:
        """The raw reasoning, part by part."""
        return ["".join(self.content[index]) for index in sorted(self.content)]


@dataclass(slots=True)
class OpenCall:
    """A call that is not complete. At the end of a turn: a call that was cut off."""

    begun: CallBegun
    pieces: list[str] = field(default_factory=list)

    @property
    def so_far(self) -> ToolCall:
        """The call with its arguments so far."""
        return self.begun.complete("".join(self.pieces))


Output = TextOutput | ReasoningOutput | OpenCall | ToolCall | WebSearch


@dataclass(slots=True)
class Result:
    """The result of a turn. `end` is None until `Finished`."""

    outputs: list[Output] = field(default_factory=list)
    usage: Usage | None = None
    end: Finished | None = None
    acted: bool = False
    """Whether the backend did something that a retry would repeat."""
    _open: dict[str, int] = field(default_factory=dict, repr=False)
    """The positions in `outputs` of calls that are not complete."""

    def add(self, events: Iterable[TurnEvent]) -> None:
        """Add events. Raises ValueError for an event after the end."""
        for event in events:
            if self.end is not None:
                raise ValueError(f"event after the end of the turn: {event!r}")
            if isinstance(event, TextDelta):
                add_pieces(self._text(event.item).pieces, event.pieces)
            elif isinstance(event, ReasoningDelta):
                output = self._reasoning(event.item)
                parts = output.content if event.raw else output.summary
                add_pieces(parts.setdefault(event.index, []), event.pieces)
            elif isinstance(event, CallDelta):
                opened = self.outputs[self._open[event.id]]
                assert isinstance(opened, OpenCall)
                add_pieces(opened.pieces, event.pieces)
            elif isinstance(event, CallBegun):
                self._open[event.id] = len(self.outputs)
                self.outputs.append(OpenCall(event))
            elif isinstance(event, ToolCall):
                self._called(event)
            elif isinstance(event, WebSearch):
                self.outputs.append(event)
            elif isinstance(event, UsageUpdate):
                self.usage = event.usage
            elif isinstance(event, Restarted):
                self.outputs.clear()
                self._open.clear()
            elif isinstance(event, Acted):
                self.acted = True
            elif isinstance(event, Finished):
                self.end = event
            elif isinstance(event, ReasoningDone):
                if event.encrypted is not None:
                    self._reasoning(event.item).encrypted = event.encrypted
            elif not isinstance(event, TextDone | Rerouted):
                raise TypeError(f"a result has one answer: {event!r}")

    @property
    def text(self) -> str:
        """All assistant text, in order."""
        return "".join(output.text for output in self.outputs if isinstance(output, TextOutput))

    @property
    def calls(self) -> list[ToolCall]:
        """All complete calls, in order."""
        return [output for output in self.outputs if isinstance(output, ToolCall)]

    @property
    def begun_calls(self) -> list[ToolCall]:
        """All calls, in order; an incomplete call has its arguments so far."""
        calls = [output for output in self.outputs if isinstance(output, ToolCall | OpenCall)]
        return [call.so_far if isinstance(call, OpenCall) else call for call in calls]

    def _text(self, item: str) -> TextOutput:
        last = self.outputs[-1] if self.outputs else None
        if isinstance(last, TextOutput) and last.item == item:
            return last
        new = TextOutput(item)
        self.outputs.append(new)
        return new

    def _called(self, call: ToolCall) -> None:
        if (position := self._open.pop(call.id, None)) is None:
            self.outputs.append(call)
        else:
            self.outputs[position] = call

    def _reasoning(self, item: str) -> ReasoningOutput:
        for output in reversed(self.outputs):
            if isinstance(output, ReasoningOutput) and output.item == item:
                return output
        new = ReasoningOutput(item)
        self.outputs.append(new)
        return new


def collect(events: Iterable[TurnEvent]) -> Result:
    """The result of a whole list of events."""
    result = Result()
    result.add(events)
    return result
