"""JSON text becomes nodes: as the standard library reads it, but with lines. Pure."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from typing import NoReturn

from bridge.lab.suite.nodes import MAX_DEPTH, NUMBER, ListNode, Node, ObjectNode, ScalarNode, Unreadable, number_of

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")
_WORD = re.compile(r"true|false|null")
_WORDS = {"true": True, "false": False, "null": None}


def read_json(text: str) -> Node:
    """The value of a JSON text. Raises Unreadable with line and column."""
    return _Reader(text).document()


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.starts = [0, *(found.end() for found in re.finditer("\n", text))]

    def document(self) -> Node:
        value = self.value(0)
        if self.ahead():
            self.refuse("something stands after the end of the value")
        return value

    def value(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            self.refuse(f"nested more than {MAX_DEPTH} levels deep")
        ahead, line = self.ahead(), self.line()
        if ahead == '"':
            return ScalarNode(line, self.string())
        if ahead == "[":
            items = ListNode(line)
            while self.goes_on(first=not items.members, closing="]"):
                items.members.append(self.value(depth + 1))
            return items
        if ahead == "{":
            members = ObjectNode(line)
            while self.goes_on(first=not members.members, closing="}"):
                members.members.append(self.member(depth + 1))
            return members
        if word := _WORD.match(self.text, self.at):
            self.at = word.end()
            return ScalarNode(line, _WORDS[word[0]])
        number = NUMBER.match(self.text, self.at)
        return ScalarNode(line, self.number(number) if number else self.refuse("expected a value"))

    def member(self, depth: int) -> tuple[int, str, Node]:
        if self.ahead() != '"':
            self.refuse("expected a key in double quotes")
        line, key = self.line(), self.string()
        if self.ahead() != ":":
            self.refuse("expected : after the key")
        self.at += 1
        return line, key, self.value(depth)

    def goes_on(self, *, first: bool, closing: str) -> bool:
        """Step over what stands before the next member of a list or object, or over its end."""
        if first:
            self.at += 1
            if self.ahead() != closing:
                return True
        elif self.ahead() == ",":
            self.at += 1
            return True
        elif self.ahead() != closing:
            self.refuse(f"expected , or {closing}")
        self.at += 1
        return False

    def number(self, found: re.Match[str]) -> int | float | None:
        try:
            value = number_of(found[0])
        except ValueError as error:
            self.refuse(str(error))
        self.at = found.end()
        return value

    def string(self) -> str:
        try:
            text, self.at = _DECODER.raw_decode(self.text, self.at)
        except json.JSONDecodeError as error:
            self.at = error.pos
            self.refuse(error.msg[:1].lower() + error.msg[1:])
        return str(text)

    def ahead(self) -> str:
        """The next character that is no space; nothing at the end."""
        space = _SPACE.match(self.text, self.at)
        self.at = space.end() if space else self.at
        return self.text[self.at : self.at + 1]

    def line(self) -> int:
        return bisect_right(self.starts, self.at)

    def refuse(self, said: str) -> NoReturn:
        line = self.line()
        raise Unreadable(f"not JSON: {said}", line, self.at - self.starts[line - 1] + 1)
