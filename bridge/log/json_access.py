"""Lenient accessors for untrusted JSON: a value of the wrong type becomes the default."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import orjson

from bridge import exact_json

_DEEPEST = 200


def loads(text: str | bytes) -> Any:
    """The value of a JSON text; None for invalid JSON. Half a surrogate pair becomes U+FFFD: UTF-8 cannot hold it."""
    try:
        return exact_json.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        spelled = json.dumps(json.loads(text), ensure_ascii=False)
        return exact_json.loads(spelled.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    except (ValueError, RecursionError):
        return None


def is_json(text: str) -> bool:
    return loads(text) is not None or text.strip() == "null"


def dump(value: Any) -> bytes:
    """A value that was read from JSON, as compact JSON. What is nested too deeply is replaced by a note."""
    try:
        return exact_json.dumps(value)
    except TypeError:  # orjson reads deeper than it writes
        return exact_json.dumps(_cut(value, _DEEPEST))


def dumps(value: Any) -> str:
    return dump(value).decode()


def text_of(value: Any) -> str:
    """A string as it is, None as an empty string, anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else dumps(value)


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """The objects in a list; none for anything but a list."""
    for entry in value if isinstance(value, list) else ():
        if isinstance(entry, dict):
            yield entry


def member(value: Any, *names: str) -> Any:
    """The value under these names, one within the other; None if a name is missing."""
    for name in names:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _cut(value: Any, depth: int) -> Any:
    if not isinstance(value, dict | list):
        return value
    if not depth:
        return f"[nested deeper than {_DEEPEST} levels: left out]"
    if isinstance(value, dict):
        return {name: _cut(entry, depth - 1) for name, entry in value.items()}
    return [_cut(entry, depth - 1) for entry in value]
