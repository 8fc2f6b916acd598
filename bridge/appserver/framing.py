"""NDJSON framing: bytes in any cutting become whole lines, within a limit.

Lines end at `\\n` and nowhere else (a JSON string may hold U+2028 or U+0085). A `\\r` before it is white space to JSON.
"""

from __future__ import annotations

MAX_LINE = 32 * 1024 * 1024
"""The largest line kept. The largest one seen from a real Codex was 23 MB."""

HEAD = 4096
"""How much of a line that is too long is kept, to find out whose it was."""


class LineSplitter:
    """Cuts a byte stream into lines; linear, whatever the reads look like.

    The unfinished tail is a list of chunks that is joined once, when its newline comes. A line above `max_line` is
    thrown away while it arrives; its first bytes are put into `oversize`, for the caller to take out.
    """

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self.max_line = max_line
        self.oversize: list[bytes] = []
        self._tail: list[bytes] = []
        self._tail_size = 0
        self._discarding = False

    def __repr__(self) -> str:
        return f"<LineSplitter tail={self._tail_size} discarding={self._discarding}>"

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their newline; empty lines are left out."""
        lines = data.split(b"\n")
        tail = lines.pop()
        if lines and (self._tail or self._discarding):
            self._end_tail(lines)
        if len(data) > self.max_line:
            # A whole line above the limit can only come in a read above the limit.
            self.oversize += [line[:HEAD] for line in lines if len(line) > self.max_line]
            lines = [line for line in lines if len(line) <= self.max_line]
        if tail:
            self._keep(tail)
        if b"" in lines:
            return [line for line in lines if line]
        return lines

    def finish(self) -> list[bytes]:
        """At the end of the stream: the last line, if it came without a newline."""
        lines = [b""]
        self._end_tail(lines)
        return [line for line in lines if line]

    def _end_tail(self, lines: list[bytes]) -> None:
        if self._discarding:
            self._discarding = False
            lines[0] = b""
        else:
            self._tail.append(lines[0])
            lines[0] = b"".join(self._tail)
            if len(lines[0]) > self.max_line:
                self.oversize.append(lines[0][:HEAD])
                lines[0] = b""
        self._tail.clear()
        self._tail_size = 0

    def _keep(self, tail: bytes) -> None:
        if self._discarding:
            return
        self._tail.append(tail)
        self._tail_size += len(tail)
        if self._tail_size > self.max_line:
            self.oversize.append(b"".join(self._tail)[:HEAD])
            self._tail.clear()
            self._tail_size = 0
            self._discarding = True
