"""The child's bytes as lines, and a provider's as events: in whatever pieces they come."""

from __future__ import annotations

from fuzz.cutting import choice, cut

from bridge.appserver.connection import HEAD, LineSplitter
from bridge.errors import UpstreamError
from bridge.protocols.sse import SseReader

MAX_LINE = 40


def split_lines(data: bytes) -> None:
    """Lines stand between newlines, too long ones are told by their heads; events are the same for every cutting."""
    body, pieces = data[1:], cut(data[1:], choice(data))
    splitter = LineSplitter(MAX_LINE)
    lines = [line for piece in pieces for line in splitter.feed(piece)] + splitter.finish()
    wanted = [line for line in body.split(b"\n") if line]
    assert lines == [line for line in wanted if len(line) <= MAX_LINE]
    too_long = [line for line in wanted if len(line) > MAX_LINE]
    assert len(splitter.oversize) == len(too_long)
    for head, line in zip(splitter.oversize, too_long, strict=True):
        assert line[:HEAD].startswith(head)
    assert _events(pieces) == _events([body])


def _events(pieces: list[bytes]) -> tuple[list[bytes], bool] | None:
    """None for a stream with an event that is too large."""
    reader = SseReader(10 * MAX_LINE)
    try:
        events = [event for piece in pieces for event in reader.feed(piece)] + reader.finish()
    except UpstreamError:
        return None
    return events, reader.done
