"""NDJSON framing: whole lines out of any reads, within a limit."""

from __future__ import annotations

import time

import pytest

from bridge.appserver.connection import HEAD, LONG, MAX_LINE, LineSplitter


def feed_all(splitter: LineSplitter, *chunks: bytes) -> list[bytes]:
    """The lines of all chunks, and of the end."""
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.finish()


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"a\nb\n"], [b"a", b"b"]),
        ([b"a", b"b", b"\n", b"c\nd", b"\n"], [b"ab", b"c", b"d"]),
        ([b"a\n", b"b\n"], [b"a", b"b"]),
        ([b"a\n\n\nb\n", b"\n", b"c\n"], [b"a", b"b", b"c"]),
        ([b"", b"a", b"", b"\n"], [b"a"]),
        ([b"\n"], []),
        ([], []),
        ([b"a\r\nb\r\n"], [b"a\r", b"b\r"]),
    ],
)
def test_lines_end_at_a_newline_wherever_the_reads_were_cut(chunks: list[bytes], lines: list[bytes]) -> None:
    """A line ends at a newline, whatever reads it came in; empty ones are left out."""
    assert feed_all(LineSplitter(), *chunks) == lines


def test_a_line_is_given_as_soon_as_its_newline_is_there() -> None:
    """A line is given by the very read that ends it."""
    splitter = LineSplitter()
    assert splitter.feed(b"one\ntw") == [b"one"]
    assert splitter.feed(b"o") == []
    assert splitter.feed(b"\n") == [b"two"]


def test_the_last_line_needs_no_newline() -> None:
    """What follows the last newline is a line once the stream has ended, and only once."""
    splitter = LineSplitter()
    assert splitter.feed(b"one\ntw") == [b"one"]
    assert splitter.feed(b"o") == []
    assert splitter.finish() == [b"two"]
    assert splitter.finish() == []


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\r", "\x0b", "\x0c", "\x1c", "\x1e"])
def test_nothing_but_a_newline_separates(separator: str) -> None:
    """What Unicode or Python calls a line break is an ordinary part of a JSON string."""
    line = f'{{"delta":"a{separator}b"}}'.encode()
    assert feed_all(LineSplitter(), line + b"\n" + line) == [line, line]


def test_a_multibyte_character_may_be_cut() -> None:
    """Bytes are joined before they are decoded."""
    line = "é😀\u2028".encode()
    chunks = [bytes([byte]) for byte in line + b"\n"]
    assert feed_all(LineSplitter(), *chunks) == [line]


def test_a_line_at_the_limit_is_kept() -> None:
    """The limit is the largest line kept, not the smallest one refused."""
    splitter = LineSplitter(max_line=8)
    assert feed_all(splitter, b"1234", b"5678", b"\n", b"12345678") == [b"12345678", b"12345678"]
    assert splitter.oversize == []


@pytest.mark.parametrize(
    "chunks",
    [
        [b"12345", b"6789", b"\nnext\n"],
        [b"12345678", b"9\nnext\n"],
        [b"123456789", b"abcdef", b"ghi\nnext\n"],
        [b"before\n123", b"4567890\nnext\n"],
        [b"123456789\nnext\n"],
        [b"before\n123456789\nnext\n"],
    ],
)
def test_a_line_above_the_limit_is_thrown_away_and_the_next_is_intact(chunks: list[bytes]) -> None:
    """An oversize line goes, however it was cut; those around it stay, and its head is kept for the caller."""
    splitter = LineSplitter(max_line=8)
    lines = feed_all(splitter, *chunks)
    assert lines == ([b"before"] if chunks[0].startswith(b"before") else []) + [b"next"]
    assert len(splitter.oversize) == 1
    assert splitter.oversize[0].startswith(b"1234567")


def test_an_oversize_line_without_an_end_is_thrown_away_too() -> None:
    """At the end of the stream nothing is left of an oversize line."""
    splitter = LineSplitter(max_line=8)
    assert feed_all(splitter, b"12345", b"67890", b"more") == []
    assert len(splitter.oversize) == 1


def test_little_of_an_oversize_line_is_kept() -> None:
    """While it arrives, an oversize line takes no memory; of all of it only the head stays."""
    splitter = LineSplitter(max_line=2 * HEAD)
    for _ in range(100):
        assert splitter.feed(b"x" * HEAD) == []
    assert "tail=0 discarding=True" in repr(splitter)
    assert splitter.oversize == [b"x" * HEAD]


def test_two_oversize_lines_are_two() -> None:
    """Each oversize line is reported once."""
    splitter = LineSplitter(max_line=4)
    assert feed_all(splitter, b"aaa", b"aaa\nb", b"bbbbb\nok\n") == [b"ok"]
    assert [head[:1] for head in splitter.oversize] == [b"a", b"b"]


@pytest.mark.parametrize("first", [1, 10, HEAD, LONG, 2 * LONG])
def test_a_long_unused_line_is_discarded(first: int) -> None:
    """However it is cut, also above the limit; a short one, and a long one that begins otherwise, are lines as ever."""
    splitter = LineSplitter(max_line=3 * LONG)
    splitter.unused = (b'{"other"', b'{"unused"')
    long, short = b'{"unused":"' + b"x" * 4 * LONG, b'{"unused":1}'
    used = b'{"used":"' + b"x" * 2 * LONG
    data = short + b"\n" + long + b"\n" + used + b"\n"
    begin = len(short) + 1 + first
    chunks = [data[:begin], *(data[start : start + LONG // 2] for start in range(begin, len(data), LONG // 2))]
    assert feed_all(splitter, *chunks) == [short, used]
    assert splitter.skipped == [long[:HEAD]]
    assert splitter.oversize == []


def test_the_largest_line_of_a_real_codex_fits() -> None:
    """The default limit is above the 23 MB that were seen."""
    assert MAX_LINE > 23 * 1024 * 1024


def test_a_single_large_line_is_linear() -> None:
    """Ten times the line takes about ten times the time, not a hundred times."""

    def seconds(size: int) -> float:
        splitter = LineSplitter()
        chunk = b"x" * 500
        started = time.process_time()
        for _ in range(size // len(chunk)):
            splitter.feed(chunk)
        (line,) = splitter.feed(b"\n")
        assert len(line) == size
        return time.process_time() - started

    small = min(seconds(1_000_000) for _ in range(3))
    large = min(seconds(10_000_000) for _ in range(3))
    assert large < 40 * small + 0.2


def test_oversize_lines_are_reported_in_order() -> None:
    """Also when one read holds a whole one and the beginning of another."""
    splitter = LineSplitter(max_line=2)
    assert splitter.feed(b"first\nok\nsecond") == [b"ok"]
    assert splitter.oversize == [b"first", b"second"]
