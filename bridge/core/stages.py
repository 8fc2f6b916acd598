"""Pure stages between a backend and an encoder: lists of events in, lists of events out.

Stop sequences and a limit of output tokens are stages for backends that support neither.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from bridge.core.backend import EventStream
from bridge.core.events import (
    CallBegun,
    CallDelta,
    Finished,
    Restarted,
    TextDelta,
    ToolCall,
    TurnEvent,
    Usage,
    UsageUpdate,
)
from bridge.core.turn import Turn, estimate_input, estimate_text


class Stage(Protocol):
    """Transforms a turn's events, batch by batch."""

    def feed(self, events: list[TurnEvent]) -> list[TurnEvent]:
        """The transformed events; none while the stage holds them back."""


class StagedStream:
    """A backend's events after they have passed a list of stages. A stage may end the turn before the backend does."""

    __slots__ = ("_source", "_stages")

    def __init__(self, source: EventStream, stages: Sequence[Stage]) -> None:
        self._source = source
        self._stages = tuple(stages)

    def then(self, stages: Sequence[Stage]) -> StagedStream:
        """The same stream with further stages behind its own."""
        return StagedStream(self._source, (*self._stages, *stages))

    async def next(self) -> list[TurnEvent]:
        events: list[TurnEvent] = []
        while not events:
            events = received = await self._source.next()
            for stage in self._stages:
                events = stage.feed(events)
        if isinstance(events[-1], Finished) and not isinstance(received[-1], Finished):
            self._source.close()
        return events

    def close(self) -> None:
        self._source.close()


class StopStage:
    """Passes events on up to the first stop sequence in the text, which sets `hit`.

    The end of a text that may become a stop sequence is held back. A sequence may be split over any number of pieces,
    but not by other events.
    """

    end = Finished("completed")
    least = 0
    """A lower bound of the tokens in the answer."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.hit = False
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops))
        self._held = ""
        self._item = ""

    def feed(self, events: list[TurnEvent]) -> list[TurnEvent]:
        """The events up to the hit. After a hit the caller ends the turn."""
        out: list[TurnEvent] = []
        for event in events:
            if self.hit:
                break
            if isinstance(event, TextDelta):
                if event.item != self._item:
                    self._release(out)
                self._item = event.item
                if visible := self._text(event):
                    out.append(TextDelta(event.item, visible))
            else:
                if isinstance(event, Restarted):
                    self._held = ""
                self._release(out)
                out.append(event)
                if isinstance(event, Finished):
                    break
        return out

    def _text(self, event: TextDelta) -> list[str]:
        """Piece by piece: where a text ends must not depend on how pieces were batched."""
        shown: list[str] = []
        for piece in event.pieces:
            if visible := self._piece(piece):
                shown.append(visible)
            if self.hit:
                break
        return shown

    def _piece(self, piece: str) -> str:
        text = self._held + piece
        # The sequence that is complete first wins, as if the text were read character by character.
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, stop = min(found)
            self.hit = True
            self.end = Finished("completed", stop_sequence=stop)
            self._held = ""
            return text[:at]
        keep = self._suspicious(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _suspicious(self, text: str) -> int:
        """The number of characters at the end that may begin a stop sequence."""
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-size:]
            if any(stop.startswith(end) for stop in self._stops):
                return size
        return 0

    def _release(self, out: list[TurnEvent]) -> None:
        if self._held:
            out.append(TextDelta(self._item, [self._held]))
            self._held = ""


LONGEST = 64
"""Characters of a word that count as one token. No known tokenizer has longer tokens within a word."""

_WORDS = re.compile(rf"[^\x00-@\[-`{{-\x7f\s\d][^\x00-&(-@\[-`{{-\x7f\s\d]{{0,{LONGEST - 1}}}|\d{{1,3}}")
"""Words (letters, apostrophes after the first, and anything beyond ASCII) and numbers.

Tokenizers split a text like this, or finer, before they look for tokens, and no token spans two words or more than
three digits. The characters between two words may share a token with the second. So a text has at least as many tokens
as words and numbers.
"""


class LimitStage:
    """Passes events on until their text has at least `limit` tokens; then `hit` is true, and the rest is cut off.

    The count is a lower bound, so that no answer ends before the client's limit: it includes words and numbers, but
    neither the characters between them nor reasoning nor calls.
    """

    end = Finished("incomplete", reason="max_output_tokens")

    def __init__(self, limit: int) -> None:
        self._limit = self.least = limit
        self._reset()

    def _reset(self) -> None:
        self.hit = False
        self._count = 0
        self._size = 0
        self._waiting: list[str] = []
        """Pieces that are not counted: nothing is while the text has fewer characters than the limit."""
        self._open = ""
        """The last word so far, which the next piece may continue."""

    def feed(self, events: list[TurnEvent]) -> list[TurnEvent]:
        """The events up to the hit. After a hit the caller ends the turn."""
        out: list[TurnEvent] = []
        for event in events:
            if isinstance(event, TextDelta):
                shown = self._text(event.pieces)
                if shown:
                    out.append(TextDelta(event.item, shown))
                if self.hit:
                    break
            else:
                if isinstance(event, Restarted):
                    self._reset()
                out.append(event)
        return out

    def _text(self, pieces: list[str]) -> list[str]:
        self._size += sum(map(len, pieces))
        if self._size < self._limit:
            self._waiting += pieces
            return pieces
        self._add("".join(self._waiting))
        self._waiting.clear()
        shown: list[str] = []
        for piece in pieces:
            kept = self._add(piece)
            if kept:
                shown.append(piece[:kept])
            if self.hit:
                break
        return shown

    def _add(self, text: str) -> int:
        """Count a text; the number of its characters that are within the limit."""
        begun = len(self._open)
        text = self._open + text
        self._open = ""
        for found in _WORDS.finditer(text):
            if self._count == self._limit:
                self.hit = True
                return found.start() - begun
            if found.end() == len(text):
                self._open = found[0]
            else:
                self._count += 1
        return len(text) - begun


class CutStage:
    """Ends the turn where `cut` has a hit, at a stop sequence or a limit."""

    def __init__(self, turn: Turn, cut: StopStage | LimitStage) -> None:
        self._turn = turn
        self._cut = cut
        self._text: list[str] = []

    def feed(self, events: list[TurnEvent]) -> list[TurnEvent]:
        events = self._cut.feed(events)
        self._text += [piece for event in events if isinstance(event, TextDelta) for piece in event.pieces]
        if not self._cut.hit:
            return events
        # The model is interrupted before it reports its usage.
        output = max(estimate_text("".join(self._text)), self._cut.least)
        return [*events, UsageUpdate(Usage(estimate_input(self._turn), 0, output, estimated=True)), self._cut.end]


class ItemOrder:
    """The same events, with those of a streamed call next to each other: clients read one item at a time, and OpenAI's
    streams never have two open items. The first call streams; the events of others wait.
    """

    def __init__(self) -> None:
        self._open: str | None = None
        """The call that is being streamed."""
        self._begun: dict[str, tuple[CallBegun, list[str]]] = {}
        """Calls that have begun and wait, with their arguments so far."""
        self._waiting: list[TurnEvent] = []

    def feed(self, events: list[TurnEvent]) -> list[TurnEvent]:
        """The events that can be passed on now."""
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
