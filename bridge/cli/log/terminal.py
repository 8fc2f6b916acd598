"""What the log commands write: lines on stdout, a bar on stderr, nothing that could play with a terminal."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import typer

from bridge import exact_json

BROKEN_PIPE = 141
"""The exit code of a program whose reader has left, as a shell tells it."""
_HOSTILE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
"""Controls, marks that turn text around or hide it, and halves of characters. Newlines and tabs stay."""
_STYLES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}


def printable(text: str) -> str:
    """A recorded text, with everything escaped that a terminal might obey."""
    return text if text.isprintable() else _HOSTILE.sub(_escape, text)


def one_line(text: str) -> str:
    """The same on one line."""
    return text if text.isprintable() else _HOSTILE.sub(_escape, text).replace("\n", "\\n").replace("\t", "\\t")


def cells(text: str) -> int:
    """How many columns a text takes."""
    return len(text) if text.isascii() else sum(_cells(char) for char in text)


def fit(text: str, width: int, *, right: bool = False) -> str:
    """A text on one line of exactly so many columns; cut where it is longer."""
    text = one_line(text)
    taken = cells(text)
    if taken > width:
        text, taken = _cut(text, width)
    space = " " * (width - taken)
    return space + text if right else text + space


class Screen:
    """Stdout. Colours only on a terminal, and not with NO_COLOR."""

    def __init__(self) -> None:
        self.on_terminal = sys.stdout.isatty()
        self.coloured = self.on_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.width = max(40, shutil.get_terminal_size((80, 24)).columns)
        self.progress = Progress()
        self._out = sys.stdout.buffer

    def line(self, text: str = "") -> None:
        """A line of ours: what is recorded in it must be `printable`."""
        self.progress.clear(also=self.on_terminal)
        self._out.write(text.encode("utf-8", "backslashreplace") + b"\n")
        if self.on_terminal:
            self._out.flush()

    def json(self, value: Any) -> None:
        """A value as one line of JSON."""
        text = exact_json.dumps(value, default=str).decode()
        self.line(text if text.isprintable() else _HOSTILE.sub(_escape_json, text))

    def style(self, text: str, *names: str) -> str:
        """Coloured, where there are colours."""
        if not self.coloured or not text:
            return text
        return f"\x1b[{';'.join(_STYLES[name] for name in names)}m{text}\x1b[0m"

    def flush(self) -> None:
        """All that was written is out."""
        self._out.flush()


class Progress:
    """A bar on stderr while a log is read: only on a terminal, and only when it takes a while."""

    def __init__(self, *, after: float = 0.5) -> None:
        self._shown = False
        self._active = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._began = time.monotonic()
        self._next = self._began + after
        self._done = 0
        self.size = 0

    def told(self, size: int) -> None:
        """So many bytes more were read."""
        self._done += size
        now = time.monotonic()
        if self._active and self.size and now >= self._next:
            self._next = now + 0.1
            self._show(now - self._began)

    def clear(self, *, also: bool = True) -> None:
        """Make room for a line, if that goes to the same terminal."""
        if self._shown and also:
            self._shown = False
            self._write("\r\x1b[K")

    def _show(self, seconds: float) -> None:
        share = min(1.0, self._done / self.size)
        rate = self._done / seconds
        left = max(0.0, self.size - self._done) / rate if rate else 0
        bar = ("█" * int(share * 20)).ljust(20, "░")
        about = f"{share:4.0%} {bar} {show_bytes(self._done)} of {show_bytes(self.size)}"
        self._write(f"\r\x1b[K{about}, {show_bytes(rate)}/s, {left:.0f} s left")
        self._shown = True

    def _write(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()


@contextmanager
def printing() -> Iterator[Screen]:
    """A screen for one command. When nobody reads any more, the command ends without a word."""
    screen = Screen()
    try:
        yield screen
        screen.flush()
    except BrokenPipeError:
        # What is still in the buffer would be complained about at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(BROKEN_PIPE) from None
    finally:
        screen.progress.clear()


def show_bytes(count: float) -> str:
    """A number of bytes, short."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def show_count(count: int | None) -> str:
    """A number in four characters at most; empty for none."""
    if count is None:
        return ""
    value = float(count)
    for unit in ("", "k", "M", "G"):
        if value < 999.5:
            return f"{value:.1f}{unit}" if unit and value < 9.95 else f"{value:.0f}{unit}"
        value /= 1000
    return "huge"


def show_seconds(seconds: float | None) -> str:
    """A duration in five characters at most; empty for none."""
    if seconds is None:
        return ""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.995:
        return f"{seconds:.2f}s"
    if seconds < 99.95:
        return f"{seconds:.1f}s"
    if seconds < 999.5:
        return f"{seconds:.0f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes}m{rest:02}"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}" if hours < 100 else f"{hours // 24}d"


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def _escape_json(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def _cells(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _cut(text: str, width: int) -> tuple[str, int]:
    if text.isascii():
        return text[: width - 1] + "…", width
    taken, kept = 0, []
    for char in text:
        size = _cells(char)
        if taken + size > width - 1:
            break
        taken += size
        kept.append(char)
    return "".join(kept) + "…", taken + 1
