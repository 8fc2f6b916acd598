"""JSON whose integers keep every digit.

orjson reads an integer beyond 64 bits as a float, and refuses to write one. A client's schema or input item may hold
one (an id, a bound, a hash), and the model must get the digits that the client wrote. So what a client sends is read
and written here; what only we or a provider write stays with orjson.

The second half reads JSON that no one has checked, as logs and peers contain it: a value of the wrong type becomes the
default.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import orjson

_ZEROS = bytes.maketrans(b"0123456789", b"0" * 10)
_LONG = b"0" * 19
"""Every integer beyond 64 bits has this many digits. Not searched with `re`, which is slow on megabytes."""
_DEEPEST = 254
"""Levels that orjson writes."""


def loads(text: bytes | str) -> Any:
    """A JSON text. Raises orjson.JSONDecodeError."""
    value = orjson.loads(text)
    if _LONG not in (text.encode() if isinstance(text, str) else text).translate(_ZEROS):
        return value
    try:
        return json.loads(text)  # slower, and lenient; but orjson has accepted the text
    except (RecursionError, ValueError):
        return value  # deeper than any reader of ours accepts, or an integer longer than Python reads (4,300 digits)


def dumps(value: Any, *, default: Callable[[Any], Any] | None = None, option: int | None = None) -> bytes:
    """A value as compact JSON. Raises TypeError, as orjson does, for other types and beyond 254 levels."""
    try:
        return orjson.dumps(value, default=default, option=option)
    except TypeError:
        # If the reason was a long integer, this succeeds; any other error is raised again.
        return orjson.dumps(_spelled_out(value, 0), default=default, option=option)


def is_within_64_bits(value: Any) -> bool:
    """Whether all integers fit: Codex refuses a whole call for one that does not."""
    try:
        orjson.dumps(value, default=dict)
    except TypeError:
        return False
    return True


def _spelled_out(value: Any, depth: int) -> Any:
    """The same value, with integers beyond 64 bits as the text that they are."""
    if type(value) is int:
        return value if -(2**63) <= value < 2**64 else orjson.Fragment(str(value))
    if depth > _DEEPEST:
        return value
    if isinstance(value, Mapping):
        return {name: _spelled_out(member, depth + 1) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled_out(member, depth + 1) for member in value]
    if is_dataclass(value):
        return {each.name: _spelled_out(getattr(value, each.name), depth + 1) for each in fields(value)}
    return value


# Untrusted values

_DEEPEST_READ = 200


def try_loads(text: str | bytes) -> Any:
    """The value of a JSON text; None for invalid JSON. Half a surrogate pair becomes U+FFFD: UTF-8 cannot hold it."""
    try:
        return loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        spelled = json.dumps(json.loads(text), ensure_ascii=False)
        return loads(spelled.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    except (ValueError, RecursionError):
        return None


def is_json(text: str | bytes) -> bool:
    return try_loads(text) is not None or text.strip() in ("null", b"null")


def safe_dumps(value: Any) -> bytes:
    """A value that was read from JSON, as compact JSON. What is nested too deeply is replaced by a note."""
    try:
        return dumps(value)
    except TypeError:  # orjson reads deeper than it writes
        return dumps(_cut(value, _DEEPEST_READ))


def text_of(value: Any) -> str:
    """A string as it is, None as an empty string, anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else safe_dumps(value).decode()


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
        return f"[nested deeper than {_DEEPEST_READ} levels: left out]"
    if isinstance(value, dict):
        return {name: _cut(entry, depth - 1) for name, entry in value.items()}
    return [_cut(entry, depth - 1) for entry in value]
