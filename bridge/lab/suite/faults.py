"""What is wrong with a suite, told all at once: file, line, key, and what to do. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from bridge.errors import UsageError

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
MAX_SAID = 500
MAX_TOLD = 20
"""More faults than this are counted only."""

Place = tuple[str | int, ...]
"""The way from the top of a file to a value: names and indices."""


def show_place(place: Place) -> str:
    """A place as people write it: `cases[2].expect.calls[0].name`."""
    shown = ""
    for step in place:
        shown += f"[{step}]" if isinstance(step, int) else f".{step}" if shown else step
    return shown


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`; did you mean X?` where something known is near; otherwise nothing."""
    near = nearest(given, known)
    return f"; did you mean {near}?" if near else ""


def nearest(given: str, known: Iterable[str]) -> str | None:
    """What was probably meant."""
    return next(iter(get_close_matches(given, list(known), 1)), None)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. Without a `file` (a case that was made in a program) only the key is told."""

    file: Path | None
    line: int
    place: Place
    said: str
    column: int = 0

    def __str__(self) -> str:
        numbers = f":{self.line}:{self.column}" if self.column else f":{self.line}" if self.line else ""
        where = f"{self.file}{numbers}: " if self.file is not None else ""
        key = f"{_one_line(show_place(self.place))}: " if self.place else ""
        return f"{where}{key}{_one_line(self.said)}"


def _one_line(text: str) -> str:
    """What a suite says of itself, kept from looking like more than one fault, or from filling the screen."""
    cut = text if len(text) <= MAX_SAID else f"{text[:MAX_SAID]}…"
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", cut)


class Faults:
    """The faults that were found so far. Those of one file are told in the order of its lines."""

    def __init__(self) -> None:
        self._found: list[Fault] = []
        self._files: dict[Path | None, int] = {}

    def add(self, fault: Fault) -> None:
        """Keep a fault."""
        self._files.setdefault(fault.file, len(self._files))
        self._found.append(fault)

    def raise_any(self) -> None:
        """Raise UsageError with a line for each fault, if there is one."""
        if not self._found:
            return
        ordered = sorted(self._found, key=lambda fault: (self._files[fault.file], fault.line))
        lines = list(dict.fromkeys(map(str, ordered)))
        more = len(lines) - MAX_TOLD
        raise UsageError("\n".join(lines[:MAX_TOLD] + ([f"and {more} more"] if more > 0 else [])))
