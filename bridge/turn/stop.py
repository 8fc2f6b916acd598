"""Stop sequences: texts that end an answer, for backends that do not know them."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.turn.events import Finished, Restarted, TextDelta, TurnEvent


class StopStage:
    """Events in, events out, up to the first stop sequence in the text. `hit` says that it was found.

    The end of a text that may still become a stop sequence is held back; a sequence may be cut over any number of
    pieces, but not over other events.
    """

    end = Finished("completed")
    least = 0
    """Tokens that the answer surely has."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.hit = False
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops))
        self._held = ""
        self._item = ""

    def feed(self, events: list[TurnEvent]) -> list[TurnEvent]:
        """What may be shown of these events. After a hit: nothing more, the caller ends the turn."""
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
        """Piece by piece: how a text is cut must not depend on how many pieces came at once."""
        shown: list[str] = []
        for piece in event.pieces:
            if visible := self._piece(piece):
                shown.append(visible)
            if self.hit:
                break
        return shown

    def _piece(self, piece: str) -> str:
        text = self._held + piece
        # The first to be complete counts, as for whoever reads letter by letter.
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.hit = True
            self._held = ""
            return text[: min(found)[1]]
        keep = self._suspicious(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _suspicious(self, text: str) -> int:
        """How many characters at the end may be the beginning of a stop sequence."""
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-size:]
            if any(stop.startswith(end) for stop in self._stops):
                return size
        return 0

    def _release(self, out: list[TurnEvent]) -> None:
        if self._held:
            out.append(TextDelta(self._item, [self._held]))
            self._held = ""
