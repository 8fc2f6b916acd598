"""The requests on stdin: one, however it is written, or one a line."""

from __future__ import annotations

import orjson

from bridge.cli.streams import read_some
from bridge.errors import UsageError

MAX_INPUT = 64 * 1024 * 1024


class Requests:
    """Hands out requests as soon as they are there. `next` blocks; it is for a thread beside the event loop."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._tail: list[bytes] = []
        self._size = 0
        self._lines: list[bytes] = []
        self._ended = False
        self._is_first = True

    def next(self) -> bytes | None:
        """The bytes of the next request; None when there is none. Raises UsageError for one that is too large."""
        while (line := self._line()) is not None:
            if not line.strip():
                continue
            if self._is_first:
                self._is_first = False
                if not _is_json(line) and _is_json(whole := self._all(line)):
                    self._lines = []
                    return whole
            return line
        return None

    def _line(self) -> bytes | None:
        while not self._lines and not self._ended:
            self._read()
        return self._lines.pop() if self._lines else None

    def _all(self, first: bytes) -> bytes:
        while not self._ended:
            self._read()
        whole = b"\n".join([first, *reversed(self._lines)])
        return _bounded(whole)

    def _read(self) -> None:
        """More lines, the next of them last."""
        piece = read_some(self._descriptor)
        self._ended = not piece
        *lines, rest = piece.split(b"\n")
        if lines or self._ended:
            lines = [b"".join([*self._tail, *lines[:1]]), *lines[1:]]
            self._tail, self._size = [], 0
        self._lines[:0] = reversed(lines)
        if rest:
            self._tail.append(rest)
            self._size += len(rest)
            if self._size > MAX_INPUT:
                _bounded(b"".join(self._tail))


def _is_json(text: bytes) -> bool:
    try:
        orjson.loads(text)
    except ValueError:
        return False
    return True


def _bounded(text: bytes) -> bytes:
    if len(text) > MAX_INPUT:
        raise UsageError(f"A request on stdin is larger than {MAX_INPUT:,} bytes.")
    return text
