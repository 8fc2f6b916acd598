"""The call of one `<tool_call>` block while the model writes it: its name, then its arguments piece by piece.

Only a block of the form that the model was asked for streams: `{"name":"NAME","arguments":"{\\"…`. Once so much of it
has come the block is *settled*: it is a call of NAME, whatever follows, because the client has that already. Its
arguments are the content of that string, up to the quote that closes it, or as far as it goes. What is wrong with the
rest can only be a repair then; nothing that was sent is taken back, and text that does not belong to the call is text.

All of it takes time linear in the text, and the result does not depend on how the text is split.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

MAX_HEAD = 512
"""A block must be settled within this number of characters."""


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call has begun. Its ParsedCall follows."""

    name: str


@dataclass(slots=True)
class CallPiece:
    """More of the arguments of the call that has begun. Together they are the beginning of its ParsedCall's."""

    text: str


_HEAD = re.compile(
    # It ends before the arguments, and wants to see that an object with a member begins there. `{"` with a quote that
    # is not escaped ends the string, and shows that this model does not quote JSON within JSON.
    r"""[ \t\r\n]* \{
    [ \t\r\n]* "name" [ \t\r\n]* : [ \t\r\n]* "([^"\\]+)" [ \t\r\n]* ,
    [ \t\r\n]* "arguments" [ \t\r\n]* : [ \t\r\n]* " (?= (?:[ ]|\\[nrt])* \{ (?:[ ]|\\[nrt])* \\" )""",
    re.VERBOSE,
)
_TO_THE_QUOTE = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,4}|[^u])?", re.DOTALL)
_LONGEST_ESCAPE = len(r"\ud83d\ude00")
_LENIENT_ESCAPE = re.compile(
    r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|([\"\\/bfnrt]))"
)
_SHORT_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SURROGATES = re.compile("[\ud800-\udfff]")
_STRINGS = json.JSONDecoder(strict=False)


_SPACES = " \t\r\n"
_CLOSERS = _SPACES + ">}]"


class CallStream:
    """`feed` it the text behind the opening tag. `names` are those whose calls may stream.

    `name` is None until the block is settled. `excess` is how many characters at the end of what was fed last cannot
    belong to the block. `quote` is where in the block the arguments end, if more members follow them: only when the
    block ends is known what those are.
    """

    __slots__ = ("_fed", "_head", "_names", "_phase", "_pieces", "_rest", "excess", "name", "quote")

    def __init__(self, names: Collection[str]) -> None:
        self.name: str | None = None
        self.excess = 0
        self.quote: int | None = None
        self._names = names
        self._phase: Literal["head", "arguments", "brace", "closers", "over"] = "head" if names else "over"
        self._fed = 0
        self._head = ""
        self._rest = ""
        """The beginning of an escape whose end has not come."""
        self._pieces: list[str] = []

    @property
    def is_over(self) -> bool:
        """Whether further text has no effect."""
        return self._phase == "over"

    def feed(self, text: str) -> list[CallStart | CallPiece]:
        """The new events of the call."""
        self.excess = 0
        if self._phase == "over":
            return []
        self._fed += len(text)
        if self._phase == "arguments" and not self._rest and '"' not in text and "\\" not in text and text.isascii():
            # Most pieces: there is nothing to decode.
            self._pieces.append(text)
            return [CallPiece(text)] if text else []
        events: list[CallStart | CallPiece] = []
        if self._phase == "head":
            self._head += text
            found = _HEAD.match(self._head[:MAX_HEAD])
            if found is None or found[1] not in self._names:
                if len(self._head) >= MAX_HEAD:
                    self._phase, self._head = "over", ""
                return []
            text, self._head = self._head[found.end() :], ""
            self.name, self._phase = found[1], "arguments"
            events.append(CallStart(self.name))
        if self._phase == "arguments":
            piece, text = self._read(text)
            if piece:
                events.append(CallPiece(piece))
        if self._phase in ("brace", "closers"):
            self._close(text)
        return events

    def stop(self) -> None:
        """Further text may belong to the arguments or not: that is decided at the end of the block."""
        self._phase = "over"

    @property
    def streamed(self) -> str:
        return "".join(self._pieces)

    def end(self) -> str:
        """The arguments so far, if the block cannot be parsed."""
        return self.streamed + _decode(self._rest)

    def _read(self, text: str) -> tuple[str, str]:
        """The new part of the arguments, and the text behind them."""
        text, behind = self._rest + text, ""
        if '"' in text:
            found = _TO_THE_QUOTE.match(text)
            assert found is not None  # it matches the empty string
            if text[found.end() : found.end() + 1] == '"':
                self._phase = "brace"
                text, behind = text[: found.end()], text[found.end() + 1 :]
        ready = _complete_length(text) if self._phase == "arguments" else len(text)
        self._rest = text[ready:]
        piece = _decode(text[:ready])
        self._pieces.append(piece)
        return piece, behind

    def _close(self, text: str) -> None:
        """Behind the arguments: the end of the object, and surplus closers. Another member is not for us to judge."""
        if self._phase == "brace":
            text = text.lstrip(_SPACES)
            if text.startswith("}"):
                self._phase = "closers"
            elif text.startswith(","):
                self._phase, self.quote = "over", self._fed - len(text)
                return
        if self._phase == "closers":
            text = text.lstrip(_CLOSERS)
        if text:
            self._phase, self.excess = "over", len(text)


def _complete_length(text: str) -> int:
    """How much of the content of a string can be decoded before the rest has come."""
    if "\\" not in text[-_LONGEST_ESCAPE:]:
        return len(text)
    # Behind another character than a backslash no escape is open.
    start = len(text[: -_LONGEST_ESCAPE + 1].rstrip("\\")) if len(text) >= _LONGEST_ESCAPE else 0
    high = -1  # where the half of a pair begins that the next escape may complete
    end = -1
    for found in _ESCAPE.finditer(text, start):
        joined = high if found.start() == end else -1
        escape, end = found[0], found.end()
        is_unicode = escape[1:2] == "u"
        high = found.start() if len(escape) == 6 and escape[2] in "dD" and escape[3] in "89abAB" else -1
        if end == len(text):
            if len(escape) == 1 or (is_unicode and len(escape) < 6):
                return joined if joined >= 0 else found.start()
            if high >= 0:
                return high
    return len(text)


def _decode(content: str) -> str:
    """The content of a JSON string. What is not JSON stays as it is; lone surrogates, which UTF-8 lacks, do not."""
    if not content.isascii():
        content = _SURROGATES.sub("\ufffd", content)
    if "\\" not in content:
        return content
    try:
        text: str = _STRINGS.raw_decode(f'"{content}"')[0]
    except ValueError:
        text = _LENIENT_ESCAPE.sub(_unescaped, content)
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def _unescaped(found: re.Match[str]) -> str:
    high, low, single, short = found.groups()
    if high is not None:
        return chr(0x10000 + (int(high, 16) - 0xD800) * 0x400 + int(low, 16) - 0xDC00)
    return chr(int(single, 16)) if single is not None else _SHORT_ESCAPES[short]
