"""stdin, stdout and stderr, as every command reads and writes them."""

from __future__ import annotations

import errno
import os
import select
import threading
from contextlib import suppress

from bridge.errors import BridgeError, UsageError

STDIN, STDOUT, STDERR = 0, 1, 2
_PIECE = 1024 * 1024
_WRITING = threading.Lock()
"""A write that was given up goes on, beside the event loop; the next one begins when it is done."""
_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""What a model, or a provider, could use to play with somebody's terminal."""


class OutputError(BridgeError):
    """What was said cannot be written."""

    code = "output_failed"


class StdoutClosed(OutputError):
    """Nobody reads any more; there is nobody to tell, either."""


def read_stdin(limit: int) -> bytes:
    """All of it. Raises UsageError where it has more bytes than `limit`, or cannot be read."""
    pieces, size = [], 0
    while size <= limit and (piece := read_some()):
        pieces.append(piece)
        size += len(piece)
    if size > limit:
        raise UsageError(f"stdin is larger than {limit:,} bytes.")
    return b"".join(pieces)


def read_some(descriptor: int = STDIN) -> bytes:
    """What there is of it, once there is something; nothing at its end. Raises UsageError where it cannot be read."""
    try:
        return os.read(descriptor, _PIECE)
    except OSError as error:
        if error.errno == errno.EBADF:
            raise UsageError("stdin is closed: redirect a file or a pipe to it, to be read.") from None
        raise UsageError(f"stdin cannot be read: {error.strerror}.") from None


def write_stdout(data: bytes) -> None:
    """All of it, now. Raises StdoutClosed when nobody reads, OutputError when it cannot be written."""
    try:
        with _WRITING:
            write_all(STDOUT, data)
    except BrokenPipeError:
        raise StdoutClosed("stdout was closed.") from None
    except OSError as error:
        what = "is closed" if error.errno == errno.EBADF else f"cannot be written: {error.strerror}"
        raise OutputError(f"stdout {what}.") from None


def say(kind: str, message: str) -> None:
    """One line of diagnostics."""
    line = " ".join(visible(message).split("\n"))
    write_stderr(f"{kind}: {line}\n".encode("utf-8", "backslashreplace"))


def write_stderr(data: bytes) -> None:
    """All of it, where somebody hears it."""
    with suppress(OSError):
        write_all(STDERR, data)


def write_all(descriptor: int, data: bytes) -> None:
    """All of it, also where a write takes a part."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            # Somebody else has made it so that writing does not wait.
            select.select([], [descriptor], [])


def visible(text: str) -> str:
    """A text without the characters that could play with somebody's terminal."""
    return text.translate(_CONTROLS)
