"""What holds for the line splitter whatever the bytes and however they are cut (reliability.md)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bridge.appserver.connection import LineSplitter

pieces = st.sampled_from([b"\n", b"\n\n", b"\r\n", b"{", b'"a"', "\u2028é".encode(), b"x" * 7, b"y" * 30]) | st.binary(
    max_size=12
)
streams = st.lists(pieces, max_size=30).map(b"".join)


@st.composite
def cut_streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A byte stream, and the same in chunks."""
    stream = draw(streams)
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    return stream, [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


def run(splitter: LineSplitter, chunks: list[bytes]) -> list[bytes]:
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.finish()


@given(cut_streams())
def test_the_lines_do_not_depend_on_the_cutting(cut: tuple[bytes, list[bytes]]) -> None:
    """The lines are those between the newlines, empty ones left out, for every cutting."""
    stream, chunks = cut
    assert run(LineSplitter(), chunks) == [line for line in stream.split(b"\n") if line]


@given(cut_streams(), st.integers(1, 20))
def test_the_limit_does_not_depend_on_the_cutting(cut: tuple[bytes, list[bytes]], limit: int) -> None:
    """Exactly the lines above the limit are missing, each with its head told once, for every cutting."""
    stream, chunks = cut
    splitter = LineSplitter(max_line=limit)
    lines = [line for line in stream.split(b"\n") if line]
    assert run(splitter, chunks) == [line for line in lines if len(line) <= limit]
    heads, large = splitter.oversize, [line for line in lines if len(line) > limit]
    assert len(heads) == len(large)
    assert all(line.startswith(head) and head for line, head in zip(large, heads, strict=True))
    assert "tail=0 discarding=False" in repr(splitter)


@given(cut_streams(), st.integers(1, 20))
def test_what_waits_never_exceeds_the_limit(cut: tuple[bytes, list[bytes]], limit: int) -> None:
    """The unfinished line that is kept never grows beyond the limit."""
    splitter = LineSplitter(max_line=limit)
    for chunk in cut[1]:
        splitter.feed(chunk)
        waiting = int(repr(splitter).partition("tail=")[2].partition(" ")[0])
        assert waiting <= limit
