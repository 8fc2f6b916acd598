"""Values from a log, read without trust: what is not what it should be is taken as its nearest relative."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import orjson

from bridge import exact_json

DEEPEST = 200
TOO_DEEP = f"[nested deeper than {DEEPEST} levels: left out]"


def loads(text: str | bytes) -> Any:
    """A JSON text; None when it is none. Half a surrogate pair becomes U+FFFD: no UTF-8 can hold it."""
    try:
        return exact_json.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        return exact_json.loads(_whole(json.dumps(json.loads(text), ensure_ascii=False)))
    except (ValueError, RecursionError):
        return None


def is_json(text: str) -> bool:
    """Whether a text is JSON."""
    return loads(text) is not None or text.strip() == "null"


def dump(value: Any) -> bytes:
    """A value that came from JSON, as compact JSON. What is nested too deeply is cut off, and says so."""
    try:
        return exact_json.dumps(value)
    except TypeError:  # orjson reads deeper than it writes
        return exact_json.dumps(_cut(value, DEEPEST))


def dumps(value: Any) -> str:
    """The same, as text."""
    return dump(value).decode()


def text_of(value: Any) -> str:
    """A string as it is, nothing as nothing, anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else dumps(value)


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """The objects in a list; nothing where there is no list."""
    for entry in value if isinstance(value, list) else ():
        if isinstance(entry, dict):
            yield entry


def member(value: Any, *names: str) -> Any:
    """What stands under these names, one within the other; None where there is no such thing."""
    for name in names:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _cut(value: Any, depth: int) -> Any:
    if not isinstance(value, dict | list):
        return value
    if not depth:
        return TOO_DEEP
    if isinstance(value, dict):
        return {name: _cut(member, depth - 1) for name, member in value.items()}
    return [_cut(member, depth - 1) for member in value]


def _whole(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
