"""Where things stand in a TOML file: the parser tells it for syntax errors alone, and in words."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from typing import Any

NEWLINE = "\n"
_AT = re.compile(r"(?P<what>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)", re.DOTALL)
_DIGITS = re.compile(r"[0-9_]+")
_PART = r"(?:[A-Za-z0-9_-]+|\"(?:[^\"\\]|\\.)*\"|'[^']*')"
_DOTTED = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADING = re.compile(rf"\s*\[\[?\s*(?P<name>{_DOTTED})\s*\]")
_KEY = re.compile(rf"\s*(?P<key>{_DOTTED})\s*=")
_LONG_TEXT = re.compile(r"\"{3}|'{3}")


def describe_syntax_error(text: str, error: ValueError) -> str:
    """`LINE:COLUMN: what is wrong`, without what the file holds there."""
    found = _AT.fullmatch(str(error))
    if found is None:
        return _describe_long_number(text)
    what = found["what"][:1].lower() + found["what"][1:]
    if found["line"] is None:
        return f"{position_after(text)}: the file ends too early ({what})"
    return f"{found['line']}:{found['column']}: {what}"


def position_after(text: str) -> str:
    """LINE:COLUMN of what follows this beginning of a file."""
    return f"{text.count(NEWLINE) + 1}:{len(text) - text.rfind(NEWLINE)}"


def line_of(text: str, keys: Sequence[str]) -> int:
    """The line on which a key stands, or the nearest table or key above it; the parser does not tell."""
    table: list[str] = []
    best, line, in_text = 0, 1, False
    for number, content in enumerate(text.split("\n"), 1):
        within, in_text = in_text, in_text ^ (len(_LONG_TEXT.findall(content)) % 2 == 1)
        if within:
            continue
        if heading := _HEADING.match(content):
            here = table = _split(heading["name"])
        elif key := _KEY.match(content):
            here = [*table, *_split(key["key"])]
        else:
            continue
        shared = next(
            (index for index, pair in enumerate(zip(here, keys, strict=False)) if pair[0] != pair[1]),
            min(len(here), len(keys)),
        )
        # A table within the one that is meant is nearer than nothing, but not as near as that table itself.
        score = 2 * shared + (shared == len(here)) if shared else 0
        if score > best:
            best, line = score, number
    return line


def _split(dotted: str) -> list[str]:
    """The parts of a dotted key, as TOML reads them."""
    try:
        data: Any = tomllib.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return []
    parts = []
    while isinstance(data, dict):
        ((part, data),) = data.items()
        parts.append(part)
    return parts


def _describe_long_number(text: str) -> str:
    """Python reads no number with more digits than this, and does not tell where it stands."""
    limit = sys.get_int_max_str_digits()
    start = next((run.start() for run in _DIGITS.finditer(text) if len(run[0]) > limit), 0)
    return f"{position_after(text[:start])}: a number must not have more than {limit:,} digits"
