"""Server-sent events: the same events however the bytes are cut, in time that grows with their number."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.errors import UpstreamError
from bridge.protocols.sse import MAX_EVENT, SseReader


def read(*chunks: bytes) -> list[bytes]:
    reader = SseReader()
    return [event for chunk in chunks for event in reader.feed(chunk)] + reader.finish()


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a \n\n", [b" a "]),
        (b"event: x\ndata: a\nid: 7\nretry: 1\n\n", [b"a"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\n\n\n\n\ndata: b\n\n", [b"a", b"b"]),
        (b": comment\n\n:\n\ndata: a\n: comment\n\n", [b"a"]),
        (b"data: a\n\ndata: [DONE]\n\n", [b"a"]),
        (b"data: a", [b"a"]),
        (b"data: a\n", [b"a"]),
        (b"data: a\n\ndata: b", [b"a", b"b"]),
        (b"database: a\n\n", []),
        (b"data\n\n", []),
        (b"data:\n\n", []),
        (b"event: x\n\n", []),
        (b"", []),
        (b"\n\n\n", []),
        (b"data: a:b: c\n\n", [b"a:b: c"]),
        ("data: \u2028\u0085\x0b\x0c\n\n".encode(), ["\u2028\u0085\x0b\x0c".encode()]),
        (b"data: a\rb\n\n", [b"a\rb"]),
        (b"data: \xff\xfe\n\n", [b"\xff\xfe"]),
        (b"data: [DONE] \n\n", [b"[DONE] "]),
        (b"\xef\xbb\xbfdata: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"\xef\xbb\xbf\n\ndata: a\n\n", [b"a"]),
        (b"\xef\xbb\xbfdata: \xef\xbb\xbfa\n\n\xef\xbb\xbfdata: b\n\n", [b"\xef\xbb\xbfa"]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),
        (b"\xef\xbbdata: a\n\ndata: b\n\n", [b"b"]),
        (b"\xef\xbb", []),
    ],
    ids=range(29),
)
def test_the_data_of_each_event(data: bytes, events: list[bytes]) -> None:
    assert read(data) == events
    assert read(*cut(data, 1)) == events


LINES = st.sampled_from(
    [
        b"data: a",
        b"data: {}",
        b"data:",
        b"data",
        b": c",
        b"event: x",
        b"",
        b"",
        b"",
        b"data: [DONE]",
        b"x",
        "data: é".encode(),
    ]
)
STREAMS = st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n"])), max_size=30).map(
    lambda lines: b"".join(itertools.chain.from_iterable(lines))
) | st.binary(max_size=200)


@given(data=STREAMS, where=st.lists(st.integers(0, 200), max_size=20))
@example(data=b"data: a\r\n\r\n", where=[8, 10])
def test_however_it_is_cut(data: bytes, where: list[int]) -> None:
    places = sorted({0, *(place for place in where if place < len(data)), len(data)})
    chunks = [data[start:end] for start, end in itertools.pairwise(places)]
    assert read(*chunks) == read(data) == read(*cut(data, 1))


@given(st.lists(st.binary(max_size=20), max_size=10), st.sampled_from([b"\n", b"\r\n"]), st.integers(1, 30))
def test_what_is_written_is_read(payloads: list[bytes], end: bytes, size: int) -> None:
    """Any data without line ends comes back; an empty one is no event."""
    payloads = [payload.replace(b"\n", b"").replace(b"\r", b"") for payload in payloads]
    data = b"".join(b"event: x%bdata: %b%b%b" % (end, payload, end, end) for payload in payloads)
    assert read(*cut(data, size)) == [payload for payload in payloads if payload not in (b"", b"[DONE]")]


def test_no_line_up_to_32_mib_is_too_long() -> None:
    assert MAX_EVENT >= 32 * 1024 * 1024


@pytest.mark.parametrize(
    "data",
    [
        b"data: " + b"x" * 1001,
        b"data: " + b"x" * 1001 + b"\n",
        b"x" * 2000,
        b":" * 2000,
        b"data: xxxxxxxxx\n" * 120,
        pytest.param(b"data:\n" * 2000),
    ],
    ids=range(6),
)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_an_event_that_does_not_end_is_refused(data: bytes, size: int) -> None:
    reader = SseReader(max_event=1000)
    with pytest.raises(UpstreamError) as caught:
        for chunk in cut(data, size):
            reader.feed(chunk)
    assert caught.value.code == "message_too_large"


def test_many_events_are_not_too_large_together() -> None:
    assert len(read(*[b"data: " + b"x" * 900 + b"\n\n"] * 100)) == 100


@pytest.mark.parametrize("size", [100, 1460, 65536])
def test_a_large_event_costs_linear_time(size: int) -> None:
    data = b"data: " + b"x" * 30_000_000 + b"\n\n"
    begun = time.process_time()
    assert len(read(*cut(data, size))[0]) == 30_000_000
    assert time.process_time() - begun < 3


@pytest.mark.parametrize("size", [1, 7, 5000])
def test_a_line_that_is_too_long_is_so_however_it_is_cut(size: int) -> None:
    """Also a line that says nothing, and one that comes whole."""
    stream = b": " + b"x" * 1500 + b"\n\n"
    reader = SseReader(max_event=1000)
    with pytest.raises(UpstreamError):
        for start in range(0, len(stream), size):
            reader.feed(stream[start : start + size])
