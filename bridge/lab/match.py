"""Whether an argument is one of those that are right. Pure.

A plain value means itself. An object with one member whose name begins with `$` is a rule:

    {"$any": [a, b]}        one of these, each a value or a rule
    {"$regex": "^a"}        a text in which the expression is found
    {"$contains": "x"}      a text that holds this one, in any case
    {"$same": "Text"}       a text that is this one but for case and white space
    {"$lines": "a\nb"}      exactly this text; a newline at its end is as good as none
    {"$number": 3}          this number, also when written as 3.0 (a text is not a number)
    {"$near": [3, 0.1]}     a number not further from 3 than 0.1
    {"$type": "string"}     any value of a JSON type
    {"$length": [1, 20]}    a text or list of such a length
    {"$set": [a, b]}        a list of these, in any order
    {"$anything": true}     any value
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from unicodedata import normalize

OTHERS = "*"
"""Among expected arguments: all that are not named."""

Wanted = TypeVar("Wanted")
Given = TypeVar("Given")

_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "null": lambda value: value is None,
}


def check_rule(rule: Any) -> str | None:
    """What is wrong with a matcher, for a person; None when nothing is."""
    if isinstance(rule, list):
        return next((wrong for member in rule if (wrong := check_rule(member))), None)
    if not isinstance(rule, dict):
        return None
    named = _rule(rule)
    if named is None:
        unknown = [name for name in rule if isinstance(name, str) and name.startswith("$")]
        if unknown:
            return f"a rule is an object with one member, one of {', '.join(_RULES)}; not {', '.join(unknown)}"
        return next((wrong for member in rule.values() if (wrong := check_rule(member))), None)
    return _CHECKS[named[0]](named[1])


def matches(rule: Any, value: Any) -> bool:
    """Whether a value is what the rule asks for. The rule has been checked."""
    named = _rule(rule) if isinstance(rule, dict) else None
    if named is not None:
        return _RULES[named[0]](named[1], value)
    if isinstance(rule, dict):
        return (
            isinstance(value, dict)
            and rule.keys() == value.keys()
            and all(matches(member, value[name]) for name, member in rule.items())
        )
    if isinstance(rule, list):
        return (
            isinstance(value, list)
            and len(rule) == len(value)
            and all(matches(one, other) for one, other in zip(rule, value, strict=True))
        )
    # To Python True is 1, and 1.0 is 1; to a schema the last two are the same.
    return isinstance(rule, bool) == isinstance(value, bool) and bool(rule == value)


def holds_text(text: str, part: str) -> bool:
    """Whether a text holds another, in any case."""
    return _folded(part) in _folded(text)


def count_pairs(wanted: Sequence[Wanted], given: Sequence[Given], fits: Callable[[Wanted, Given], bool]) -> int:
    """How many of those wanted find one that fits, each another; the best way to pair them is found."""
    taken: dict[int, int] = {}

    def place(index: int, seen: set[int]) -> bool:
        for at, one in enumerate(given):
            if at in seen or not fits(wanted[index], one):
                continue
            seen.add(at)
            if at not in taken or place(taken[at], seen):
                taken[at] = index
                return True
        return False

    return sum(place(index, set()) for index in range(len(wanted)))


def _folded(text: str) -> str:
    # The same letters may be written in several ways: one code point, or a letter and its accent.
    return normalize("NFC", text.casefold())


def _rule(rule: Mapping[str, Any]) -> tuple[str, Any] | None:
    if len(rule) != 1:
        return None
    ((name, wanted),) = rule.items()
    return (name, wanted) if name in _RULES else None


def _is_number(value: Any) -> bool:
    return _TYPES["number"](value)


def _matches_set(wanted: list[Any], value: Any) -> bool:
    same_length = isinstance(value, list) and len(value) == len(wanted)
    return same_length and count_pairs(wanted, value, matches) == len(wanted)


_RULES: Mapping[str, Callable[[Any, Any], bool]] = {
    "$any": lambda wanted, value: any(matches(rule, value) for rule in wanted),
    "$regex": lambda wanted, value: isinstance(value, str) and re.search(wanted, value) is not None,
    "$contains": lambda wanted, value: isinstance(value, str) and holds_text(value, wanted),
    "$same": lambda wanted, value: isinstance(value, str) and _folded(wanted).split() == _folded(value).split(),
    "$lines": lambda wanted, value: isinstance(value, str) and wanted.removesuffix("\n") == value.removesuffix("\n"),
    "$number": lambda wanted, value: _is_number(value) and value == wanted,
    "$near": lambda wanted, value: _is_number(value) and abs(value - wanted[0]) <= wanted[1],
    "$type": lambda wanted, value: _TYPES[wanted](value),
    "$length": lambda wanted, value: isinstance(value, str | list) and wanted[0] <= len(value) <= wanted[1],
    "$set": _matches_set,
    "$anything": lambda wanted, value: True,
}


def _check_regex(wanted: Any) -> str | None:
    if not isinstance(wanted, str):
        return "$regex takes a text"
    try:
        re.compile(wanted)
    except re.error as error:
        return f"$regex {wanted!r}: {error}"
    return None


def _check_list(name: str) -> Callable[[Any], str | None]:
    return lambda wanted: check_rule(wanted) if isinstance(wanted, list) and wanted else f"{name} takes a list"


def _check_text(name: str) -> Callable[[Any], str | None]:
    return lambda wanted: None if isinstance(wanted, str) else f"{name} takes a text"


def _check_pair(name: str) -> Callable[[Any], str | None]:
    def check(wanted: Any) -> str | None:
        fits = isinstance(wanted, list) and len(wanted) == 2 and all(map(_is_number, wanted))
        return None if fits else f"{name} takes two numbers"

    return check


_CHECKS: Mapping[str, Callable[[Any], str | None]] = {
    "$any": _check_list("$any"),
    "$regex": _check_regex,
    "$contains": _check_text("$contains"),
    "$same": _check_text("$same"),
    "$lines": _check_text("$lines"),
    "$number": lambda wanted: None if _is_number(wanted) else "$number takes a number",
    "$near": _check_pair("$near"),
    "$type": lambda wanted: None if wanted in _TYPES else f"$type takes one of {', '.join(_TYPES)}",
    "$length": _check_pair("$length"),
    "$set": _check_list("$set"),
    "$anything": lambda wanted: None if wanted is True else "$anything takes true",
}
