"""Read a YAML or JSON file into plain values with the line of each, and collect the faults of a suite.

Plain YAML words mean what they mean in JSON: `true`, `null` and JSON numbers; everything else is text. So `NO`,
`12:30`, `2024-01-01` and `007` are text, which arguments of tools need more often than dates. Only the tags of
JSON's own types are accepted, so that no file can make the parser build an object.

Values are built here from the parser's events because libyaml's own composer recurses in C without a limit. An alias is
the very object of its anchor, so aliases cost no memory. The limits still count everything that an alias stands for,
because checking a suite visits it each time.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from bridge.errors import UsageError
from bridge.terminal import escape_line
from bridge.tools.parameters import KeyPath

MAX_BYTES = 5_000_000
MAX_DEPTH = 64
MAX_VALUES = 200_000
"""Values in one file."""
MAX_CHARACTERS = 20_000_000
"""Characters of all texts in one file."""
MAX_REPORTED = 20
"""Further faults are only counted."""
MAX_LENGTH = 500
"""Characters of a message or a key in a fault."""
MAX_REPEATED = 1_000_000
"""Characters of one `$repeat`."""
MAX_REPEATED_TOTAL = 20_000_000
"""Characters of all repeated texts in one file."""
ENDINGS = (".yaml", ".yml", ".json")

PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CORE = "tag:yaml.org,2002:"
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<fraction>(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)")
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


# Faults: each names the file, the line and the key, and all of them are reported at once


def nearest(given: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant."""
    return next(iter(get_close_matches(given, list(known), 1)), None)


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`; did you mean X?` if a known word is similar, otherwise nothing."""
    near = nearest(given, known)
    return f"; did you mean {near}?" if near else ""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. A case built by a program has no `file`; its faults show only the key."""

    file: Path | None
    line: int
    path: KeyPath
    message: str
    column: int = 0

    def __str__(self) -> str:
        numbers = f":{self.line}:{self.column}" if self.column else f":{self.line}" if self.line else ""
        where = f"{self.file}{numbers}: " if self.file is not None else ""
        key = ""
        for step in self.path:
            key += f"[{step}]" if isinstance(step, int) else f".{step}" if key else step
        return where + (f"{_one_line(key)}: " if key else "") + _one_line(self.message)


def _one_line(text: str) -> str:
    """Text from a suite must not look like several faults, nor fill the screen."""
    return escape_line(text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}…")


def raise_faults(faults: Sequence[Fault]) -> None:
    """Raise UsageError with one line per fault, by file and line, if there are any."""
    files = {file: number for number, file in enumerate(dict.fromkeys(fault.file for fault in faults))}
    ordered = sorted(faults, key=lambda fault: (files[fault.file], fault.line))
    lines = list(dict.fromkeys(map(str, ordered)))
    more = len(lines) - MAX_REPORTED
    if lines:
        raise UsageError("\n".join(lines[:MAX_REPORTED] + ([f"and {more} more"] if more > 0 else [])))


# Documents


@dataclass(frozen=True, slots=True)
class Document:
    """The content of a file, and where its faults go. One built by a program has no `file` and no lines."""

    file: Path | None
    data: Any
    faults: list[Fault]
    line: int = 0
    lines: Mapping[int, Mapping[str | int, int]] = field(default_factory=dict)
    """The lines of the members of each object and list, by its `id`; `data` keeps them all alive."""
    hidden: KeyPath = ()
    """The beginning of paths that is not shown."""

    def line_of(self, path: KeyPath) -> int:
        """The line of a value's key or, if it has none, of the nearest value around it."""
        value, line = self.data, self.line
        for step in path:
            lines = self.lines.get(id(value), {})
            if step not in lines:
                break
            value, line = value[step], lines[step]
        return line

    def fault(self, path: KeyPath, message: str = "") -> Fault:
        shown = path[len(self.hidden) :] if path[: len(self.hidden)] == self.hidden else path
        return Fault(self.file, self.line_of(path), shown, message)

    def report(self, path: KeyPath, message: str) -> None:
        self.faults.append(self.fault(path, message))


class Unreadable(Exception):
    """The file cannot be read beyond this point."""

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(message)
        self.message, self.line, self.column = message, line, column


def read_document(path: Path, faults: list[Fault]) -> Document | None:
    """The document in a file, whose faults go to `faults`. If it cannot be read, add the reason and return None."""
    try:
        text = _read_text(path)
        return (_read_json if path.suffix == ".json" else _read_yaml)(path, text, faults)
    except Unreadable as error:
        faults.append(Fault(path, error.line, (), error.message, error.column))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        parts = (getattr(error, "context", None), getattr(error, "problem", None))
        message = ", ".join(part for part in parts if part) or str(error)
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        faults.append(Fault(path, line, (), f"invalid YAML: {message}", column))
    return None


def _read_text(path: Path) -> str:
    if path.suffix not in ENDINGS:
        raise Unreadable(f"the name of a suite file must end in {', '.join(ENDINGS)}")
    try:
        # Reading a pipe or a device could wait, or go on, for ever.
        if path.exists() and not path.is_file():
            raise Unreadable("not a regular file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise Unreadable(f"larger than {MAX_BYTES:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable("not UTF-8", content.count(b"\n", 0, error.start) + 1) from None


def _read_yaml(path: Path, text: str, faults: list[Fault]) -> Document:
    # The parser rejects these, too, but does not name the line.
    if odd := _UNPRINTABLE.search(text):
        line, column = text.count("\n", 0, odd.start()) + 1, odd.start() - text.rfind("\n", 0, odd.start())
        raise Unreadable(f"write the character U+{ord(odd[0]):04X} as an escape in double quotes", line, column)
    return _Reader(path, text, faults).document()


def _read_json(path: Path, text: str, faults: list[Fault]) -> Document:
    """JSON through the YAML parser, which knows the lines.

    libyaml rejects some JSON (tabs, surrogate pairs, keys of over 1,024 characters), so the standard library checks the
    syntax and decodes the strings; the YAML parser sees a number in place of each string.
    """
    strings: list[str] = []

    def number(found: re.Match[str]) -> str:
        strings.append(found[0])
        return f'"{len(strings) - 1}"'

    plain = _JSON_STRING.sub(number, text).replace("\t", " ")
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        message = error.msg[:1].lower() + error.msg[1:]
        raise Unreadable(f"invalid JSON: {message}", error.lineno, error.colno) from None
    except RecursionError:
        pass  # the reader refuses such nesting, and knows where
    return _Reader(path, plain, faults, strings).document()


class _Reader:
    """Builds values from events, within the limits. Duplicate keys become faults.

    `strings` are JSON strings; in their place the text has their numbers in quotes.
    """

    def __init__(self, file: Path, text: str, faults: list[Fault], strings: list[str] | None = None) -> None:
        self.file = file
        self.events: Iterator[Any] = yaml.parse(text, Loader=PARSER)
        self.faults = faults
        self.strings = strings
        self.anchors: dict[str, tuple[Any, int, int, int]] = {}
        """Each anchor's value, how many values and characters it stands for, and its levels."""
        self.lines: dict[int, dict[str | int, int]] = {}
        self.values = self.characters = self.deepest = 0

    def document(self) -> Document:
        data: Any = None
        line = 0
        for event in self.events:
            if isinstance(event, DocumentStartEvent):
                if line:
                    _refuse(event, "a suite file must hold one document; this is a second one")
                root = next(self.events)
                data, line = self.value(root, ()), _line(root)
        return Document(self.file, data, self.faults, line or 1, self.lines)

    def value(self, event: Any, path: KeyPath) -> Any:
        if isinstance(event, AliasEvent):
            if event.anchor not in self.anchors:
                _refuse(event, f"the anchor &{event.anchor} is not complete before this alias")
            value, values, characters, levels = self.anchors[event.anchor]
            self.count(event, len(path) + levels, values, characters)
            return value
        values, characters, deepest = self.values, self.characters, self.deepest
        self.deepest = 0
        self.count(event, len(path), 1)
        if isinstance(event, ScalarEvent):
            value = self.scalar(event)
        elif isinstance(event, SequenceStartEvent):
            value = self.sequence(event, path)
        else:
            value = self.mapping(event, path)
        if event.anchor is not None:
            levels = self.deepest - len(path)
            self.anchors[event.anchor] = value, self.values - values, self.characters - characters, levels
        self.deepest = max(self.deepest, deepest)
        return value

    def count(self, event: Any, depth: int, values: int = 0, characters: int = 0) -> None:
        if depth > MAX_DEPTH:
            _refuse(event, f"nested more than {MAX_DEPTH} levels deep")
        self.deepest = max(self.deepest, depth)
        self.values += values
        self.characters += characters
        if self.values > MAX_VALUES:
            raise Unreadable(f"more than {MAX_VALUES:,} values, counting what aliases stand for", _line(event))
        if self.characters > MAX_CHARACTERS:
            raise Unreadable(f"more than {MAX_CHARACTERS:,} characters, counting what aliases stand for", _line(event))

    def sequence(self, start: Any, path: KeyPath) -> list[Any]:
        _check_tag(start, "seq")
        value: list[Any] = []
        lines = self.lines[id(value)] = {}
        while not isinstance(event := next(self.events), SequenceEndEvent):
            lines[len(value)] = _line(event)
            value.append(self.value(event, (*path, len(value))))
        return value

    def mapping(self, start: Any, path: KeyPath) -> dict[str, Any]:
        """An object: its own members first, followed by those that it merges (`<<`)."""
        _check_tag(start, "map")
        value: dict[str, Any] = {}
        lines = self.lines[id(value)] = {}
        merged: list[dict[str, Any]] = []
        while not isinstance(event := next(self.events), MappingEndEvent):
            key = self.key(event)
            merges = key == "<<" and event.implicit[0]
            member = self.value(next(self.events), path if merges else (*path, key))
            if merges:
                merged += member if isinstance(member, list) else [member]
                if not all(isinstance(each, dict) for each in merged):
                    _refuse(event, "<< takes a mapping or a list of mappings")
            elif key in value:
                message = f"duplicate key; first used on line {lines[key]}"
                self.faults.append(Fault(self.file, _line(event), (*path, key), message))
            else:
                value[key], lines[key] = member, _line(event)
        for source in merged:
            for key in source:
                if key not in value:
                    value[key], lines[key] = source[key], self.lines[id(source)][key]
        return value

    def key(self, event: Any) -> str:
        if not isinstance(event, ScalarEvent):
            _refuse(event, "a key must be text")
        key = self.scalar(event)
        if not isinstance(key, str):
            _refuse(event, f"a key must be text: write {event.value!r} in quotes")
        return key

    def scalar(self, event: Any) -> Any:
        """The JSON value that a scalar stands for."""
        text = event.value
        if event.tag is not None or not event.implicit[0]:
            _check_tag(event, "str")
            text = text if self.strings is None else json.loads(self.strings[int(text)])
        elif text in _WORDS:
            return _WORDS[text]
        elif found := _NUMBER.fullmatch(text):
            return _number(event, found)
        elif self.strings is not None:
            _refuse(event, f"invalid JSON: {text} is not a JSON value")
        self.count(event, 0, 0, len(text))
        if _SURROGATE.search(text):
            raise Unreadable("text with half of a surrogate pair", _line(event))
        return text


def _number(event: Any, found: re.Match[str]) -> int | float:
    text = found[0]
    if found["fraction"]:
        if not math.isfinite(value := float(text)):
            _refuse(event, f"the number {text[:40]} is too large")
        return value
    if len(text) > 20 or not -(2**63) <= (whole := int(text)) < 2**64:
        _refuse(event, f"the number {text[:40]} has more than 64 bits")
    return whole


def _check_tag(event: Any, own: str) -> None:
    if event.tag not in (None, f"{_CORE}{own}"):
        _refuse(event, f"the tag {event.tag.replace(_CORE, '!!')} is not supported")


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _refuse(event: Any, message: str) -> NoReturn:
    raise Unreadable(message, _line(event), int(event.start_mark.column) + 1)


def expand_repeats(document: Document) -> Any:
    """A copy of a file's content with its repeated texts, `{"$repeat": ["ab", 10000]}`, written out."""
    left = MAX_REPEATED_TOTAL

    def expand(value: Any, path: KeyPath) -> Any:
        nonlocal left
        match value:
            case list():
                return [expand(member, (*path, index)) for index, member in enumerate(value)]
            case {"$repeat": [str(text), int(times)]} if len(value) == 1 and times is not True and times >= 0:
                size = len(text) * times
                left -= size
                if size <= MAX_REPEATED and left >= 0:
                    return text * times
                limits = f"{MAX_REPEATED:,} characters, and {MAX_REPEATED_TOTAL:,} in one file"
                document.report(path, f"$repeat may make at most {limits}")
                return "?"
            case {"$repeat": _}:
                document.report(path, "$repeat must be the only key and takes a text and a count: [text, count]")
                return "?"
            case dict():
                return {name: expand(member, (*path, name)) for name, member in value.items()}
        return value

    return expand(document.data, ())
