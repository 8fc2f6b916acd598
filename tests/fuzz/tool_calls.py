"""The parser of tool calls: whatever a model writes, in whatever pieces it comes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import orjson
from fuzz.cutting import choice, cut

from bridge.tools.call_stream import CallPiece
from bridge.tools.parser import ParsedCall, ParserEvent, Repair, ToolCallParser

_HAS_TEXT = (str, ParsedCall, Repair)


def _is_valid(arguments: str) -> bool:
    """Whether a strict tool takes them: an object with a `q`."""
    try:
        found = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return False
    return isinstance(found, dict) and "q" in found


TOOLS = {"look": None, "find": _is_valid}


def parse_tool_calls(data: bytes) -> None:
    """Every cutting gives the same; nothing is lost; what is called may be called, with arguments that can be told."""
    text = data[1:].decode("utf-8", "replace")
    whole = _parse([text])
    assert _parse(cut(text, choice(data))) == whole
    sources = [event if isinstance(event, str) else event.source for event in whole if isinstance(event, _HAS_TEXT)]
    assert "".join(sources) == text
    for before, event in pairwise([None, *whole]):
        if isinstance(before, CallPiece):
            assert isinstance(event, ParsedCall)
            assert event.arguments.startswith(before.text)
        if isinstance(event, ParsedCall):
            assert event.name in TOOLS
            assert event.name != "find" or _is_valid(event.arguments)
            orjson.dumps(event.arguments)


def _parse(pieces: Iterable[str]) -> list[ParserEvent]:
    parser = ToolCallParser(TOOLS)
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    joined: list[ParserEvent] = events[:1]
    for before, event in pairwise(events):
        if isinstance(event, str) and isinstance(before, str):
            joined[-1] += event  # type: ignore[operator]
        elif isinstance(event, CallPiece) and isinstance(before, CallPiece):
            joined[-1] = CallPiece(joined[-1].text + event.text)  # type: ignore[union-attr]
        else:
            joined.append(event)
    return joined
