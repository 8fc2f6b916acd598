"""Values with the lines that they stand on: what is read from YAML and from JSON alike. Pure.

A tree of nodes may hold one node several times (YAML's aliases), so that a small file can stand for a huge value. It is
put together here within limits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bridge.lab.suite.faults import Fault, Faults, Place

MAX_DEPTH = 64
MAX_VALUES = 200_000
"""The values of one file, each alias counted with everything in it."""
MAX_CHARACTERS = 20_000_000
"""The characters of all its texts, counted in the same way."""

NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<fraction>(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Unreadable(Exception):
    """A file cannot be read any further than here."""

    def __init__(self, said: str, line: int, column: int = 0) -> None:
        super().__init__(said)
        self.said, self.line, self.column = said, line, column


@dataclass(slots=True)
class ScalarNode:
    """A text, a number, a boolean or null."""

    line: int
    value: str | int | float | bool | None


@dataclass(slots=True)
class ListNode:
    """A list."""

    line: int
    members: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class ObjectNode:
    """An object: line of the key, key and value of each member. A key may still occur twice."""

    line: int
    members: list[tuple[int, str, Node]] = field(default_factory=list)
    merged: list[tuple[int, str, Node]] = field(default_factory=list)
    """Members of other objects (YAML's `<<`), for the keys that it does not have itself."""


Node = ScalarNode | ListNode | ObjectNode


def number_of(text: str) -> int | float | None:
    """The number that JSON would read; None for what is none. Raises ValueError beyond 64 bits."""
    found = NUMBER.fullmatch(text)
    if found is None:
        return None
    if found["fraction"]:
        value = float(text)
        if not math.isfinite(value):
            raise ValueError(f"the number {text[:40]} is too large")
        return value
    if len(text) > 20 or not -(2**63) <= (whole := int(text)) < 2**64:
        raise ValueError(f"the number {text[:40]} has more than 64 bits")
    return whole


@dataclass(frozen=True, slots=True)
class Document:
    """What a file holds, and where. Without a `file` it was made in a program, and has no lines."""

    file: Path | None
    data: Any
    lines: Mapping[Place, int] = field(default_factory=dict)
    hidden: Place = ()
    """The beginning of places that is not told."""

    def line(self, place: Place) -> int:
        """The line of a value's key, or of the nearest thing around it that has a line."""
        for end in range(len(place), -1, -1):
            if place[:end] in self.lines:
                return self.lines[place[:end]]
        return 0

    def fault(self, place: Place, said: str) -> Fault:
        """A fault at a place of this file."""
        shown = place[len(self.hidden) :] if place[: len(self.hidden)] == self.hidden else place
        return Fault(self.file, self.line(place), shown, said)


def put_together(root: Node, file: Path | None, faults: Faults) -> Document:
    """The document of a tree. Keys that stand twice become faults; raises Unreadable beyond the limits."""
    building = _Building(file, faults)
    data = building.value(root, (), root.line)
    return Document(file, data, building.lines)


class _Building:
    def __init__(self, file: Path | None, faults: Faults) -> None:
        self.file = file
        self.faults = faults
        self.lines: dict[Place, int] = {}
        self.characters = 0
        self.searched: set[int] = set()
        """Objects that have been searched for keys that stand twice."""

    def value(self, node: Node, place: Place, line: int) -> Any:
        if len(place) > MAX_DEPTH:
            raise Unreadable(f"nested more than {MAX_DEPTH} levels deep", node.line)
        self.lines[place] = line
        if len(self.lines) > MAX_VALUES:
            raise Unreadable(f"more than {MAX_VALUES:,} values, aliases counted with what is in them", node.line)
        if isinstance(node, ListNode):
            return [self.value(member, (*place, index), member.line) for index, member in enumerate(node.members)]
        if isinstance(node, ObjectNode):
            return {
                self.text(key, at): self.value(member, (*place, key), at)
                for key, (at, member) in self.members(node, place).items()
            }
        return self.text(node.value, node.line) if isinstance(node.value, str) else node.value

    def members(self, node: ObjectNode, place: Place) -> dict[str, tuple[int, Node]]:
        own: dict[str, tuple[int, Node]] = {}
        for line, key, member in node.members:
            if key not in own:
                own[key] = (line, member)
            elif id(node) not in self.searched:
                said = f"this key stands here twice; first on line {own[key][0]}"
                self.faults.add(Fault(self.file, line, (*place, key), said))
        self.searched.add(id(node))
        for line, key, member in node.merged:
            own.setdefault(key, (line, member))
        return own

    def text(self, text: str, line: int) -> str:
        self.characters += len(text)
        if self.characters > MAX_CHARACTERS:
            raise Unreadable(f"more than {MAX_CHARACTERS:,} characters, aliases counted with what is in them", line)
        if _SURROGATE.search(text):
            raise Unreadable("a text with half of a surrogate pair in it", line)
        return text
