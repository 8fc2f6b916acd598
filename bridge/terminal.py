"""stdin, stdout, stderr and output files as all commands use them: whole reads and writes, and errors with a name.

`Screen` is stdout for people: lines with colours on a terminal, tables, and a progress bar on stderr.

Text from a model, a provider or a client can hold escape sequences that move the cursor or retitle a window, marks that
reverse or hide what follows, and halves of surrogate pairs that cannot be encoded at all. Logs, commands and reports
escape or remove them with the functions below.
"""

from __future__ import annotations

import errno
import io
import os
import re
import select
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge import exact_json
from bridge.errors import BridgeError, ConfigError, UsageError

if TYPE_CHECKING:
    from rich.table import Table

STDIN, STDOUT, STDERR = 0, 1, 2
_PIECE = 1024 * 1024
_WRITING = threading.Lock()
"""A cancelled write continues in its thread; the next one waits until it is done."""


class OutputError(BridgeError):
    """Output cannot be written."""

    code = "output_failed"


class StdoutClosed(OutputError):
    """The reader of stdout has gone, so an error cannot be reported there."""


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


# A screen: lines on stdout, a progress bar on stderr

BROKEN_PIPE = 141
"""The exit code of a program whose reader has gone, as shells report it."""
_STYLES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36}


def cells(text: str) -> int:
    """How many columns a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def fit(text: str, width: int) -> str:
    """A text on one line of exactly this many columns; cut where it is longer."""
    text = escape_line(text)
    taken = cells(text)
    if taken <= width:
        return text + " " * (width - taken)
    if text.isascii():
        return text[: width - 1] + "…"
    from rich.cells import set_cell_size

    return set_cell_size(text, width - 1) + "…"


class Screen:
    """Stdout. It has colours only on a terminal, and not with NO_COLOR."""

    def __init__(self) -> None:
        import shutil  # loads every compressor, for few commands

        self.on_terminal = sys.stdout.isatty()
        self.coloured = self.on_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.width = max(40, shutil.get_terminal_size((80, 24)).columns)
        self.progress = Progress()
        self._out = sys.stdout.buffer

    def line(self, text: str = "") -> None:
        """Write a line; what is recorded in it must be escaped."""
        self.write(text.encode("utf-8", "backslashreplace") + b"\n")

    def write(self, data: bytes) -> None:
        """Write bytes as they are."""
        self.progress.clear(also=self.on_terminal)
        self._out.write(data)
        if self.on_terminal:
            self._out.flush()

    def json(self, value: Any) -> None:
        """Write a value as one line of JSON."""
        self.line(escape_line(exact_json.dumps(value, default=str).decode()))

    def draw(self, table: Table) -> None:
        """Write an empty line and a table, whose recorded texts must be escaped."""
        from rich.console import Console

        drawn = io.StringIO()
        Console(
            file=drawn, width=min(self.width, 100), color_system="standard" if self.coloured else None,
            force_terminal=self.coloured, no_color=not self.coloured, markup=False, emoji=False, highlight=False,
            legacy_windows=False,
        ).print(table)  # fmt: skip
        self.line()
        for line in drawn.getvalue().splitlines():
            self.line(line.rstrip())

    def style(self, text: str, *names: str) -> str:
        if not self.coloured or not text or not names:
            return text
        return f"\x1b[{';'.join(str(_STYLES[name]) for name in names)}m{text}\x1b[0m"

    def flush(self) -> None:
        self._out.flush()


class Progress:
    """A bar on stderr while a log is read: only on a terminal, and only when it takes a while."""

    def __init__(self) -> None:
        self.size = 0
        self._is_shown = False
        self._active = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._began = self._next = 0.0
        self._done = 0

    def advance(self, size: int) -> None:
        """Count this many more bytes as read."""
        self._done += size
        now = time.monotonic()
        if not self._began:  # with the first bytes, not with the imports before them
            self._began, self._next = now, now + 0.5
        if not self._active or not self.size or now < self._next:
            return
        from rich.filesize import decimal

        self._next = now + 0.1
        share, rate = min(1.0, self._done / self.size), self._done / (now - self._began)
        left = max(0.0, self.size - self._done) / rate if rate else 0
        bar = ("█" * int(share * 20)).ljust(20, "░")
        amount = f"{decimal(self._done)} of {decimal(self.size)}, {decimal(int(rate))}/s"
        self._write(f"\r\x1b[K{share:4.0%} {bar} {amount}, {left:.0f} s left")
        self._is_shown = True

    def clear(self, *, also: bool = True) -> None:
        """Make room for a line, if that goes to the same terminal."""
        if self._is_shown and also:
            self._is_shown = False
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()


@contextmanager
def printing() -> Iterator[Screen]:
    """A screen for one command. When the reader of stdout has gone, the command ends silently."""
    screen = Screen()
    try:
        yield screen
        screen.flush()
    except BrokenPipeError:
        # Python would flush what is still in the buffer at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(BROKEN_PIPE) from None
    finally:
        screen.progress.clear()
