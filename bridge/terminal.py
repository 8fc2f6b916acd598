"""stdin, stdout, stderr and output files as all commands use them: whole reads and writes, and errors with a name.

Text from a model, a provider or a client can hold escape sequences that move the cursor or retitle a window, marks that
reverse or hide what follows, and halves of surrogate pairs that cannot be encoded at all. Logs, commands and reports
escape or remove them with the functions below.
"""

from __future__ import annotations

import errno
import os
import re
import select
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bridge.errors import BridgeError, ConfigError, UsageError

STDIN, STDOUT, STDERR = 0, 1, 2
_PIECE = 1024 * 1024
_WRITING = threading.Lock()
"""A cancelled write continues in its thread; the next one waits until it is done."""


class OutputError(BridgeError):
    """Output cannot be written."""

    code = "output_failed"


class StdoutClosed(OutputError):
    """The reader of stdout has gone, so there is no one to report an error to."""


class WriteFailed(BridgeError):
    """A file could not be written to its end, for example because the disk is full."""

    code = "write_failed"


def read_stdin(limit: int) -> bytes:
    """Read all of stdin. Raises UsageError when it is larger than `limit` bytes or cannot be read."""
    pieces, size = [], 0
    while size <= limit and (piece := read_some()):
        pieces.append(piece)
        size += len(piece)
    if size > limit:
        raise UsageError(f"stdin is larger than {limit:,} bytes.")
    return b"".join(pieces)


def read_some(descriptor: int = STDIN) -> bytes:
    """Wait for data and return it; empty at the end of the file. Raises UsageError when it cannot be read."""
    try:
        return os.read(descriptor, _PIECE)
    except OSError as error:
        if error.errno == errno.EBADF:
            raise UsageError("stdin is closed. Redirect a file or a pipe to it.") from None
        raise UsageError(f"stdin cannot be read: {error.strerror}.") from None


def write_stdout(data: bytes) -> None:
    """Write all of it. Raises StdoutClosed when the reader has gone, OutputError when it cannot be written."""
    try:
        with _WRITING:
            write_all(STDOUT, data)
    except BrokenPipeError:
        raise StdoutClosed("stdout was closed.") from None
    except OSError as error:
        what = "is closed" if error.errno == errno.EBADF else f"cannot be written: {error.strerror}"
        raise OutputError(f"stdout {what}.") from None


def say(kind: str, message: str) -> None:
    """Write one line of diagnostics to stderr."""
    line = " ".join(remove_controls(message).split("\n"))
    write_stderr(f"{kind}: {line}\n".encode("utf-8", "backslashreplace"))


def write_stderr(data: bytes) -> None:
    """Write all of it; a closed stderr is ignored."""
    with suppress(OSError):
        write_all(STDERR, data)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it, in several writes if necessary."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            # Another process that shares this descriptor has made it non-blocking.
            select.select([], [descriptor], [])


def write_pieces(path: Path, pieces: Iterable[bytes], *, instead_of: Iterable[Path] = ()) -> None:
    """Write to a file (0600) that is there whole or not at all, or to stdout when `path` is `-`.

    Raises ConfigError when the file cannot be made, or is one of `instead_of`, the files that it is made from, and
    WriteFailed when it cannot be written to its end.
    """
    if str(path) == "-":
        try:
            sys.stdout.buffer.writelines(pieces)
            sys.stdout.buffer.flush()
        except OSError as error:
            # Python would complain once more when it flushes at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if not isinstance(error, BrokenPipeError):  # then the reader has enough
                raise WriteFailed(f"stdout cannot be written: {error.strerror}.") from error
        return
    refuse_input(path, instead_of)
    if path.exists() and not path.is_file():  # a pipe or a device stays what it is
        try:
            with path.open("wb") as file:
                file.writelines(pieces)
        except OSError as error:
            raise WriteFailed(f"{path} cannot be written: {error.strerror}.") from error
        return
    with unfinished(path) as temporary:
        with temporary.open("wb") as file:
            file.writelines(pieces)
        temporary.replace(path)


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """A new file (0600) beside `path`, to be renamed to it when it is whole; otherwise it is removed at the end."""
    import tempfile  # loads a lot, for few commands

    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error
    os.close(descriptor)
    try:
        yield Path(name)
    except OSError as error:
        raise WriteFailed(f"{path} cannot be written: {error.strerror}.") from error
    finally:
        Path(name).unlink(missing_ok=True)


def refuse_input(path: Path, inputs: Iterable[Path]) -> None:
    """Raise ConfigError when a file would replace one that it is made from."""
    for source in inputs:
        if path.resolve() == source.resolve() or (path.exists() and path.samefile(source)):
            raise ConfigError(f"{path} is the log itself. Give the copy another name.")


# Characters that a terminal obeys instead of showing them

CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f"
"""C0 and C1 controls without tab and newline, as a range for a character class."""
MARKS = "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"
"""Zero-width characters, direction marks and Unicode's own line separators."""
SURROGATES = "\ud800-\udfff"
HOSTILE = CONTROLS + MARKS + SURROGATES
"""Everything that must be escaped where text from outside is shown to a person."""

_CONTROLS = re.compile(f"[{CONTROLS}]")
_IN_BLOCK = re.compile(f"[{HOSTILE}]")
_IN_LINE = re.compile(f"[\n\t{HOSTILE}]")
_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def escape_block(text: str) -> str:
    """Escape hostile characters; newlines and tabs stay."""
    return text if text.isprintable() else _IN_BLOCK.sub(_escape, text)


def escape_line(text: str) -> str:
    """Escape hostile characters, newlines and tabs, so that the result is one line."""
    return text if text.isprintable() else _IN_LINE.sub(_escape, text)


def remove_controls(text: str) -> str:
    """Drop control characters but keep all others: joiners and direction marks belong to many languages and emoji."""
    return text if text.isprintable() else _CONTROLS.sub("", text)


def _escape(found: re.Match[str]) -> str:
    return _NAMED.get(found[0]) or f"\\u{ord(found[0]):04x}"
