"""YAML text becomes nodes. Pure.

Plain words mean what they mean in JSON: `true`, `null` and numbers as JSON writes them; everything else is a text. So
`NO`, `12:30`, `2024-01-01` and `007` are texts, which arguments of tools need more often than a date. No tag but those
of JSON's own kinds is taken: nothing is ever made from one.

The parser's events are read, not its nodes: composing them recurses in C without a bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NoReturn

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from bridge.lab.suite.nodes import MAX_DEPTH, MAX_VALUES, ListNode, Node, ObjectNode, ScalarNode, Unreadable, number_of

_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CORE = "tag:yaml.org,2002:"
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_MERGE = "<<"


def read_yaml(text: str) -> Node:
    """The value of a YAML text with one document. Raises Unreadable with line and column."""
    if odd := _UNPRINTABLE.search(text):
        line = text.count("\n", 0, odd.start()) + 1
        column = odd.start() - text.rfind("\n", 0, odd.start())
        raise Unreadable(
            f"the character U+{ord(odd[0]):04X} must be written as an escape in double quotes", line, column
        )
    try:
        return _Reader(yaml.parse(text, Loader=_PARSER)).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise Unreadable(f"not YAML: {said}", mark.line + 1 if mark else 0, mark.column + 1 if mark else 0) from None
    except yaml.YAMLError as error:
        raise Unreadable(f"not YAML: {error}", 0) from None


class _Reader:
    def __init__(self, events: Iterator[Event]) -> None:
        self.events = events
        self.anchors: dict[str, Node] = {}
        self.copied = 0

    def document(self) -> Node:
        root: Node | None = None
        for event in self.events:
            if isinstance(event, DocumentStartEvent):
                if root is not None:
                    _refuse(event, "a suite is one document; this is a second one")
                root = self.value(next(self.events), 0)
        return root or ScalarNode(1, None)

    def value(self, event: Event, depth: int) -> Node:
        if depth > MAX_DEPTH:
            _refuse(event, f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(event, AliasEvent):
            if event.anchor not in self.anchors:
                _refuse(event, f"no anchor &{event.anchor} is complete before this alias")
            return self.anchors[event.anchor]
        node: Node
        if isinstance(event, ScalarEvent):
            node = ScalarNode(_line(event), _scalar(event))
        elif isinstance(event, SequenceStartEvent):
            _check_tag(event, "seq")
            node = ListNode(_line(event))
            while not isinstance(member := next(self.events), SequenceEndEvent):
                node.members.append(self.value(member, depth + 1))
        else:
            node = self.object(event, depth)
        if isinstance(event, ScalarEvent | SequenceStartEvent | MappingStartEvent) and event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def object(self, event: Event, depth: int) -> ObjectNode:
        _check_tag(event, "map")
        node = ObjectNode(_line(event))
        while not isinstance(key := next(self.events), MappingEndEvent):
            if not isinstance(key, ScalarEvent):
                _refuse(key, "a key is a text")
            name = _scalar(key)
            value = self.value(next(self.events), depth + 1)
            if name == _MERGE and key.implicit[0]:
                self.merge(node, value, key)
            elif isinstance(name, str):
                node.members.append((_line(key), name, value))
            else:
                _refuse(key, f"a key is a text: write {key.value!r} in quotes")
        return node

    def merge(self, node: ObjectNode, value: Node, key: Event) -> None:
        for other in value.members if isinstance(value, ListNode) else [value]:
            if not isinstance(other, ObjectNode):
                _refuse(key, "<< takes an object or a list of objects")
            # Each merge copies, so that a chain of them would grow with the square of its length.
            self.copied += len(other.members) + len(other.merged)
            if self.copied > MAX_VALUES:
                _refuse(key, f"more than {MAX_VALUES:,} values are merged")
            node.merged += other.members + other.merged


def _scalar(event: ScalarEvent) -> str | int | float | bool | None:
    if event.tag is not None or not event.implicit[0]:
        _check_tag(event, "str")
        return str(event.value)
    if event.value in _WORDS:
        return _WORDS[event.value]
    try:
        number = number_of(event.value)
    except ValueError as error:
        _refuse(event, str(error))
    return event.value if number is None else number


def _check_tag(event: Any, own: str) -> None:
    if event.tag not in (None, f"{_CORE}{own}"):
        _refuse(event, f"the tag {event.tag.replace(_CORE, '!!')} is not taken here")


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _refuse(event: Any, said: str) -> NoReturn:
    raise Unreadable(said, _line(event), int(event.start_mark.column) + 1)
