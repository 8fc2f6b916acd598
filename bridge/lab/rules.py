"""The rules of expected values: how a suite writes them, and whether a value matches one. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from unicodedata import normalize

from bridge import exact_json
from bridge.tools.schema import compile_schema

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
    """What is wrong with a rule; None if nothing is."""
    if isinstance(rule, dict):
        if (named := _rule(rule)) is not None:
            name, wanted = named
            if not _RULES[name].accepts(wanted):
                return f"{name} takes {_RULES[name].takes}"
            if name == "$regex":
                try:
                    re.compile(wanted)
                except re.error as error:
                    return f"$regex {wanted!r}: {error}"
            if name == "$json" and compile_schema(wanted) is None:
                return "$json takes a JSON Schema that can be used without fetching anything"
            return check_rule(wanted) if isinstance(wanted, list) or name == "$not" else None
        if unknown := [name for name in rule if isinstance(name, str) and name.startswith("$")]:
            return f"unknown rule {', '.join(unknown)}; a rule is an object with exactly one of {', '.join(_RULES)}"
    members = rule.values() if isinstance(rule, dict) else rule if isinstance(rule, list) else ()
    return next((wrong for member in members if (wrong := check_rule(member))), None)


def has_rule(value: Any) -> bool:
    """Whether there is a rule in a value, at any depth."""
    if isinstance(value, list):
        return any(map(has_rule, value))
    if not isinstance(value, dict):
        return False
    return any(name.startswith("$") for name in value) or any(map(has_rule, value.values()))


def matches(rule: Any, value: Any) -> bool:
    """Whether a value matches a rule that has been checked."""
    named = _rule(rule) if isinstance(rule, dict) else None
    if named is not None:
        return _RULES[named[0]].matches(named[1], value)
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
    # In Python True == 1 == 1.0; in JSON only the last two are equal.
    return isinstance(rule, bool) == isinstance(value, bool) and bool(rule == value)


def holds_text(text: str, part: str) -> bool:
    """Whether a text contains another, ignoring case."""
    return _folded(part) in _folded(text)


def count_pairs(wanted: Sequence[Wanted], given: Sequence[Given], fits: Callable[[Wanted, Given], bool]) -> int:
    """The size of the largest matching between `wanted` and `given`."""
    partner: dict[int, int] = {}
    """The wanted one that each given one is paired with."""

    def pair(index: int, seen: set[int]) -> bool:
        for at, one in enumerate(given):
            if at not in seen and fits(wanted[index], one):
                seen.add(at)
                if at not in partner or pair(partner[at], seen):
                    partner[at] = index
                    return True
        return False

    return sum(pair(index, set()) for index in range(len(wanted)))


def _folded(text: str) -> str:
    # An accented letter may be one code point, or a letter and a combining accent.
    return normalize("NFC", text.casefold())


def _rule(rule: Mapping[str, Any]) -> tuple[str, Any] | None:
    if len(rule) != 1:
        return None
    ((name, wanted),) = rule.items()
    return (name, wanted) if name in _RULES else None


_is_text, _is_number = _TYPES["string"], _TYPES["number"]


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))


def _matches_set(wanted: list[Any], value: Any) -> bool:
    same_length = isinstance(value, list) and len(value) == len(wanted)
    return same_length and count_pairs(wanted, value, matches) == len(wanted)


_FIGURE = re.compile(r"[-−]?\d+(?:[,'’]\d{3})*(?:\.\d+)?(?:[eE][+-]?\d+)?")


def last_number(text: Any) -> float | None:
    """The last number in a text; thousands may be grouped. None if there is none."""
    found = _FIGURE.findall(text) if isinstance(text, str) else []
    return float(re.sub("[,'’]", "", found[-1]).replace("−", "-")) if found else None


def _fits_json(schema: Any, value: Any) -> bool:
    """Whether a text is JSON that fits a schema."""
    if not isinstance(value, str):
        return False
    try:
        parsed = exact_json.loads(value.strip())
    except ValueError:
        return False
    check = compile_schema(schema)
    return check is not None and check(parsed)


class _Rule(NamedTuple):
    takes: str
    """What stands beside its name in a suite."""
    accepts: Callable[[Any], bool]
    matches: Callable[[Any, Any], bool]


def _text_rule(test: Callable[[str, str], bool]) -> _Rule:
    return _Rule("text", _is_text, lambda wanted, value: _is_text(value) and test(wanted, value))


# docs/lab.md says what each rule means.
_RULES: Mapping[str, _Rule] = {
    "$any": _Rule("a list", _is_list, lambda wanted, value: any(matches(rule, value) for rule in wanted)),
    "$regex": _text_rule(lambda wanted, value: re.search(wanted, value) is not None),
    "$contains": _text_rule(lambda wanted, value: holds_text(value, wanted)),
    "$same": _text_rule(lambda wanted, value: _folded(wanted).split() == _folded(value).split()),
    "$lines": _text_rule(lambda wanted, value: wanted.removesuffix("\n") == value.removesuffix("\n")),
    "$number": _Rule("a number", _is_number, lambda wanted, value: _is_number(value) and value == wanted),
    "$near": _Rule("two numbers", _is_pair, lambda near, value: _is_number(value) and abs(value - near[0]) <= near[1]),
    "$type": _Rule(
        f"one of {', '.join(_TYPES)}",
        lambda wanted: _is_text(wanted) and wanted in _TYPES,
        lambda wanted, value: _TYPES[wanted](value),
    ),
    "$length": _Rule(
        "two numbers",
        _is_pair,
        lambda limits, value: isinstance(value, str | list) and limits[0] <= len(value) <= limits[1],
    ),
    "$set": _Rule("a list", _is_list, _matches_set),
    "$percent": _Rule(
        "two numbers",
        _is_pair,
        lambda near, value: _is_number(value) and abs(value - near[0]) <= abs(near[0]) * near[1] / 100,
    ),
    "$figure": _Rule(
        "two numbers",
        _is_pair,
        lambda near, value: (number := last_number(value)) is not None and abs(number - near[0]) <= near[1],
    ),
    "$json": _Rule("a JSON Schema", lambda wanted: isinstance(wanted, dict | bool), _fits_json),
    "$all": _Rule("a list", _is_list, lambda wanted, value: all(matches(rule, value) for rule in wanted)),
    "$not": _Rule("a value or a rule", lambda wanted: True, lambda wanted, value: not matches(wanted, value)),
    "$anything": _Rule("true", lambda wanted: wanted is True, lambda wanted, value: True),
}
