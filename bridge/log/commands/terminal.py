"""Output of the log commands: lines on stdout, a progress bar on stderr, and nothing that a terminal would obey."""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import typer

from bridge import exact_json
from bridge.terminal import escape_line

if TYPE_CHECKING:
    from rich.table import Table

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
        """The text in colour, where there are colours."""
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
        raise typer.Exit(BROKEN_PIPE) from None
    finally:
        screen.progress.clear()


def show_count(count: int | None) -> str:
    """A number in at most four characters; empty for none."""
    if count is None:
        return ""
    value = float(count)
    for unit in ("", "k", "M", "G"):
        if value < 999.5:
            return f"{value:.1f}{unit}" if unit and value < 9.95 else f"{value:.0f}{unit}"
        value /= 1000
    return "huge"


def show_seconds(seconds: float | None) -> str:
    """A duration in at most five characters; empty for none."""
    if seconds is None:
        return ""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f}ms"
    for limit, digits in ((9.995, 2), (99.95, 1), (999.5, 0)):
        if seconds < limit:
            return f"{seconds:.{digits}f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, of_hour = divmod(minutes, 60)
    if minutes < 100:
        return f"{minutes}m{rest:02}"
    return f"{hours}h{of_hour:02}" if hours < 100 else f"{hours // 24}d"
