"""Tool calls found in the assistant's text as it arrives (payloads.md §4).

The result depends only on the text, not on how it is split, and takes time linear in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from bridge.tools.call_stream import CallPiece, CallStart, CallStream
from bridge.tools.payload import BAD_JSON, CLOSE_TAG, FENCE, OPEN_TAG, Payload, Rejection, decode_payload

UNKNOWN_TOOL = "unknown_tool"
SCHEMA_MISMATCH = "schema_mismatch"

DAMAGED = "damaged_json"
"""The repair of a block that is damaged behind the point where it was settled (see `CallStream`)."""

MAX_OPENINGS = 8
"""The number of opening tags within a block that are tried as the beginning of another."""

MAX_RESCANS = 8
"""How often text is read again because a string never closes (see `ToolCallParser`)."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call. `source` is its whole block; of several calls in one block, the first has it."""

    name: str
    arguments: str
    repairs: tuple[str, ...] = ()
    source: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Repair:
    """Text that was removed although it belongs to no call."""

    name: str
    source: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """The record of a block that is not a call; its text follows as a visible `str`."""

    reason: str
    source: str = field(repr=False)


WholeEvent = str | ParsedCall | Repair | Rejected
ParserEvent = WholeEvent | CallStart | CallPiece
"""A `str` is visible text and never empty. A call that streams is `CallStart CallPiece* ParsedCall`, nothing between.

All `str`, and the sources of `ParsedCall` and `Repair`, joined in their order, are the input.
"""

_State = Literal["off", "text", "opened", "block", "after", "finished"]

_SPACES = re.compile(r"[ \t\r\n]*+")
# Unrolled loops, not possessive groups: those with alternatives are broken in Python before 3.11.5. Each text
# matches in one way only, so an unclosed string fails in linear time.
_CLOSED_STRINGS = re.compile(r'[^"]*(?:"[^"\\]*(?:\\.[^"\\]*)*"[^"]*)*', re.DOTALL)


class ToolCallParser:
    """Splits one assistant message into visible text and tool calls.

    `tools` maps each name that may be called to None, or for a strict tool to a predicate that says whether
    an arguments string validates. Without tools everything is text. The calls of strict tools, and of those in `whole`,
    do not stream.

    A block ends at the first closing tag outside a JSON string. If that makes it bad JSON although a closing
    tag stood inside a string, or if the stream ends so, then the string was never meant to go on: the block
    ends at that first tag, and what follows is read again as ordinary text. After `MAX_RESCANS` of these the
    first closing tag ends every block, so that no text can make us read it more often.

    An opening tag outside a JSON string ends a block that is a whole call so far: models forget to close the first of
    several.

    A block that is settled (see `CallStream`) is never rejected. One that would have been is a call with the arguments
    that have come. It ends where it stops looking like one, its repair is `DAMAGED`, and what follows is text.

    A tag whose payload does not even begin like one (an object, an array, a code fence) is prose. It is
    rejected at once, so that a mention of the tag neither holds up the text nor hides a call after it.
    """

    def __init__(
        self,
        tools: Mapping[str, Callable[[str], bool] | None],
        *,
        whole: Collection[str] = (),
        open_tag: str = OPEN_TAG,
        close_tag: str = CLOSE_TAG,
    ) -> None:
        for tag in open_tag, close_tag:
            # With `<` only in front, a suffix that may begin the tag starts at the last `<`. Without quotes
            # and backslashes, a tag lies wholly inside or wholly outside a JSON string.
            if not re.fullmatch(r'<[^<"\\]+', tag):
                raise ValueError(f'a tag is one "<" followed by no other, no quote and no backslash: {tag!r}')
        if open_tag.startswith(close_tag) or close_tag.startswith(open_tag):
            raise ValueError(f"one tag begins with the other: {open_tag!r}, {close_tag!r}")
        self._tools = dict(tools)
        self._streaming = frozenset(name for name, validates in tools.items() if validates is None) - set(whole)
        self._open = open_tag
        self._close = close_tag
        self._state: _State = "text" if tools else "off"
        self._held = ""  # a suffix of the input that may begin a tag or a fence
        self._pieces: list[str] = []  # of the block, or of the white space after a call
        self._strings = _Strings()
        self._call = CallStream(self._streaming)
        self._rescans = 0
        self._openings = 0

    def __repr__(self) -> str:
        buffered = sum(map(len, self._pieces))
        return f"<ToolCallParser {self._state} held={self._held!r} {buffered=} rescans={self._rescans}>"

    def feed(self, text: str) -> list[ParserEvent]:
        """Read the next piece of text. RuntimeError after `finish`."""
        if "<" not in text and not self._held:
            if self._state == "text":
                return [text] if text else []
            if self._state == "block":
                if self._call.is_over:
                    self._pieces.append(text)
                    return []
                events: list[ParserEvent] = []
                end = self._take(text, 0, len(text), events)
                if end < len(text):
                    self._run(text[end:], events)
                return events
        if self._state == "finished":
            raise RuntimeError("text after the end")
        if self._state == "off":
            return [text] if text else []
        events = []
        self._run(text, events)
        return events

    def finish(self) -> list[ParserEvent]:
        """The text has ended: decide what is still open. RuntimeError when called again."""
        if self._state == "finished":
            raise RuntimeError("finished twice")
        events: list[ParserEvent] = []
        while self._state in ("opened", "block"):
            source = "".join(self._pieces) + self._held
            body = source[len(self._open) : len(source) - len(self._held)]
            self._held = ""
            self._end_block(source, body, ("unclosed",), events)
        _show("".join(self._pieces) + self._held, events)
        self._pieces = []
        self._held = ""
        self._state = "finished"
        return events

    def _run(self, text: str, events: list[ParserEvent]) -> None:
        if self._held:
            text = self._held + text
            self._held = ""
        # Positions, not slices: one piece may hold very many blocks.
        pos = 0
        while pos < len(text):
            if self._state == "text":
                pos = self._read_text(text, pos, events)
            elif self._state == "opened":
                pos = self._read_opened(text, pos, events)
            elif self._state == "block":
                pos = self._read_block(text, pos, events)
            else:
                pos = self._read_after(text, pos, events)

    def _read_text(self, text: str, pos: int, events: list[ParserEvent]) -> int:
        start = text.find(self._open, pos)
        if start < 0:
            start = _partial_tag(text, pos, self._open)
            self._held = text[start:]
            _show(text[pos:start], events)
            return len(text)
        _show(text[pos:start], events)
        self._state = "opened"
        self._pieces = [self._open]
        self._strings = _Strings()
        self._call = CallStream(self._streaming)
        self._openings = 0
        return start + len(self._open)

    def _read_opened(self, text: str, pos: int, events: list[ParserEvent]) -> int:
        """After an opening tag: find out whether a payload begins here."""
        pos = self._take_spaces(text, pos)
        head = text[pos : pos + len(self._close)]
        if head.startswith(("{", "[", FENCE, self._close)):
            self._state = "block"
            self._call.feed("".join(self._pieces[1:]))
            return pos
        if FENCE.startswith(head) or self._close.startswith(head):
            self._held = head
            return len(text)
        self._reject("".join(self._pieces), BAD_JSON, events)
        return pos

    def _read_block(self, text: str, pos: int, events: list[ParserEvent]) -> int:
        start = text.find(self._close, pos)
        if self._openings < MAX_OPENINGS:
            opening = text.find(self._open, pos, start if start >= 0 else len(text))
        else:
            opening = -1  # each one means another look for the end
        if opening >= 0:
            return self._read_second_opening(text, pos, opening, events)
        if start < 0:
            start = min(_partial_tag(text, pos, self._close), _partial_tag(text, pos, self._open))
            end = self._take(text, pos, start, events)
            if end == start:
                self._held = text[start:]
                end = len(text)
            return end
        end = self._take(text, pos, start, events)
        if end < start:
            return end
        self._pieces.append(self._close)
        if self._rescans == MAX_RESCANS or not self._strings.are_open(self._pieces):
            source = "".join(self._pieces)
            self._end_block(source, source[len(self._open) : -len(self._close)], (), events)
        else:
            # Part of a string, or, if that never closes, the end of the block.
            self._call.stop()
        return start + len(self._close)

    def _read_second_opening(self, text: str, pos: int, opening: int, events: list[ParserEvent]) -> int:
        """An opening tag within a block: the first call was never closed, or the tag is part of its arguments."""
        end = self._take(text, pos, opening, events)
        if end < opening:
            return end
        self._openings += 1
        if not self._strings.are_open(self._pieces, at_close=False):
            source = "".join(self._pieces)
            body = source[len(self._open) :]
            is_settled = self._call.name is not None and not self._call.is_over
            if is_settled or isinstance(self._judge(body), Payload):
                self._end_block(source, body, ("unclosed",), events)
                return opening
        return self._take(text, opening, opening + len(self._open), events)

    def _read_after(self, text: str, pos: int, events: list[ParserEvent]) -> int:
        """After a call: remove repeated closing tags."""
        pos = self._take_spaces(text, pos)
        head = text[pos : pos + len(self._close)]
        if head == self._close:
            self._pieces.append(head)
            events.append(Repair("repeated_closing_tag", "".join(self._pieces)))
            self._pieces = []
            return pos + len(head)
        if self._close.startswith(head):
            self._held = head
            return len(text)
        _show("".join(self._pieces), events)
        self._pieces = []
        self._state = "text"
        return pos

    def _take(self, text: str, pos: int, end: int, events: list[ParserEvent]) -> int:
        """Add `text[pos:end]` to the block, up to the returned position. Text that cannot belong to it ends it."""
        events += self._call.feed(text[pos:end])
        end -= self._call.excess
        self._pieces.append(text[pos:end])
        if self._call.excess:
            source = "".join(self._pieces)
            self._end_block(source, source[len(self._open) :], ("unclosed",), events)
        return end

    def _take_spaces(self, text: str, pos: int) -> int:
        spaces = _SPACES.match(text, pos)
        assert spaces is not None  # it matches the empty string
        if spaces[0]:
            self._pieces.append(spaces[0])
        return spaces.end()

    def _end_block(self, source: str, body: str, repairs: tuple[str, ...], events: list[ParserEvent]) -> None:
        outcome = self._judge(body)
        first_close = self._strings.first_close
        if self._call.name is not None and not self._continues_stream(outcome):
            self._end_damaged(self._call.name, source, repairs, events)
        elif isinstance(outcome, Payload):
            self._called(outcome.calls, outcome.repairs + repairs, source, events)
        elif outcome.reason == BAD_JSON and first_close:
            self._rescans += 1
            self._reject(source[:first_close], BAD_JSON, events)
            self._run(source[first_close:], events)
        else:
            self._reject(source, outcome.reason, events)

    def _end_damaged(self, name: str, source: str, repairs: tuple[str, ...], events: list[ParserEvent]) -> None:
        """The block ends at the closing tag in a string that never closes, or behind its arguments."""
        ends = [self._strings.first_close] if self._strings.first_close else []
        if self._call.quote is not None:
            ends.append(len(self._open) + self._call.quote)
        end = min(ends, default=len(source))
        repairs = (DAMAGED,) if ends else (DAMAGED, *repairs)
        self._called([(name, self._call.end())], repairs, source[:end], events)
        if end == len(source):
            return
        if self._rescans < MAX_RESCANS:
            self._rescans += 1
            self._run(source[end:], events)
        else:
            self._state = "text"
            _show(source[end:], events)

    def _continues_stream(self, outcome: Payload | Rejection) -> bool:
        """Whether a settled block is the one call whose beginning was streamed."""
        if not isinstance(outcome, Payload) or len(outcome.calls) != 1:
            return False
        name, arguments = outcome.calls[0]
        return name == self._call.name and arguments.startswith(self._call.streamed)

    def _called(
        self, calls: Iterable[tuple[str, str]], repairs: tuple[str, ...], source: str, events: list[ParserEvent]
    ) -> None:
        self._pieces = []
        self._state = "after"
        for name, arguments in calls:
            events.append(ParsedCall(name, arguments, repairs, source))
            source = ""

    def _judge(self, body: str) -> Payload | Rejection:
        payload = decode_payload(body)
        if isinstance(payload, Rejection):
            return payload
        for name, arguments in payload.calls:
            if name not in self._tools:
                return Rejection(UNKNOWN_TOOL)
            validates = self._tools[name]
            if validates is not None and not validates(arguments):
                return Rejection(SCHEMA_MISMATCH)
        return payload

    def _reject(self, source: str, reason: str, events: list[ParserEvent]) -> None:
        events.append(Rejected(reason, source))
        events.append(source)
        self._pieces = []
        self._state = "text"


class _Strings:
    """Follows the JSON strings of one block, from closing tag to closing tag.

    Only there does it matter whether a string is open, so an ordinary piece of a block costs one append.
    """

    __slots__ = ("_in_string", "_length", "_pieces", "first_close")

    def __init__(self) -> None:
        self.first_close = 0
        """The end of the first closing tag inside a string of the block; 0 if there is none."""
        self._in_string = False
        self._pieces = 0
        self._length = 0

    def are_open(self, pieces: list[str], *, at_close: bool = True) -> bool:
        """Whether `pieces`, the block up to a tag (and including it `at_close`), end inside a string."""
        text = "".join(pieces[self._pieces :])
        self._pieces = len(pieces)
        self._length += len(text)
        if self._in_string:
            text = '"' + text
        closed = _CLOSED_STRINGS.match(text)
        assert closed is not None  # it matches the empty string
        self._in_string = closed.end() < len(text)
        if self._in_string and at_close and not self.first_close:
            self.first_close = self._length
        return self._in_string


def whole_events(parser: ToolCallParser, text: str) -> list[WholeEvent]:
    """The events of a whole message, each call in one."""
    events = [*parser.feed(text), *parser.finish()]
    return [event for event in events if not isinstance(event, CallStart | CallPiece)]


def _partial_tag(text: str, pos: int, tag: str) -> int:
    """Where the suffix of `text[pos:]` that may begin `tag` starts; the end of the text if none does."""
    start = text.rfind("<", max(pos, len(text) - len(tag) + 1))
    return start if start >= 0 and tag.startswith(text[start:]) else len(text)


def _show(text: str, events: list[ParserEvent]) -> None:
    if text:
        events.append(text)
