"""The limit of output tokens, for backends that have none of their own."""

from __future__ import annotations

import re

from bridge.turn.events import Finished, Restarted, TextDelta, TurnEvent

LONGEST = 64
"""Characters of a word that count as one token. No known tokenizer has longer tokens within a word."""

_WORDS = re.compile(rf"[^\x00-@\[-`{{-\x7f\s\d][^\x00-&(-@\[-`{{-\x7f\s\d]{{0,{LONGEST - 1}}}|\d{{1,3}}")
"""Words (letters, apostrophes after the first, and anything beyond ASCII) and numbers.

Tokenizers split a text in this way, or finer, before they look for tokens, and no token spans two words or more than
three digits. What stands between two words may share a token with the second. So a text has at least as many tokens as
it has words and numbers.
"""


class LimitStage:
    """Passes events on until their text has at least `limit` tokens; then `hit` is true, and the rest is cut off.

    The count is a lower bound, so that no answer ends before the client's limit: it includes words and numbers, but
    not what stands between them, thoughts or calls.
    """

    end = Finished("incomplete", reason="max_output_tokens")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reset()

    def _reset(self) -> None:
        self.hit = False
        self._count = 0
        self._size = 0
        self._waiting: list[str] = []
        """What has not been counted: while a text has fewer characters than the limit, nothing needs to be."""
        self._open = ""
        """The last word so far, which the next piece may continue."""

    def feed(self, events: list[TurnEvent]) -> list[TurnEvent]:
        """What may be shown of these events. After a hit: nothing more, the caller ends the turn."""
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
        """Count a text in; how many of its characters may be shown."""
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
