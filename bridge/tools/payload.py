"""What stands between the tags of a tool call, read as one or several calls (payloads.md §4).

Everything here takes time linear in the text, whatever the text is: the JSON is read at most twice, and every
quantifier of every pattern is possessive.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

BAD_JSON = "bad_json"
NOT_AN_OBJECT = "not_an_object"
NO_NAME = "no_name"
BAD_ARGUMENTS = "bad_arguments"

FENCE = "```"


@dataclass(frozen=True, slots=True)
class Payload:
    """The calls of one block in order, each a name and its arguments string, and what had to be mended."""

    calls: tuple[tuple[str, str], ...]
    repairs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a block is no call."""

    reason: str


def decode_payload(text: str) -> Payload | Rejection:
    """Read the text between the tags.

    A repair never edits a string's content, never changes a name and never joins two objects; one bad member
    of an array rejects the whole. Never raises, however deep or broken the text is.
    """
    if not _is_unicode(text):
        return Rejection(BAD_JSON)
    repairs = []
    document = _read(text)
    if document is None:
        mended = "".join(_ALL_BUT_TRAILING_COMMAS.findall(text))
        document = _read(mended) if len(mended) < len(text) else None
        if document is None:
            return Rejection(BAD_JSON)
        repairs.append("trailing_comma")
    if document.fenced:
        repairs.append("code_fence")
    if document.surplus:
        repairs.append("surplus_suffix")

    members = [document.value]
    if isinstance(document.value, list):
        members = document.value
        repairs.append("array_unwrapped" if len(members) == 1 else "array_split")
    if not members:
        return Rejection(NOT_AN_OBJECT)

    calls = []
    for member in members:
        if not isinstance(member, dict):
            return Rejection(NOT_AN_OBJECT)
        name = member.get("name")
        if not isinstance(name, str) or not name:
            return Rejection(NO_NAME)
        given = member.get("arguments")
        arguments = _arguments_string(given)
        if isinstance(arguments, Rejection):
            return arguments
        if not _is_unicode(name) or not _is_unicode(arguments):
            return Rejection(BAD_JSON)
        if isinstance(given, dict | list) and "arguments_coerced" not in repairs:
            repairs.append("arguments_coerced")
        calls.append((name, arguments))
    return Payload(tuple(calls), tuple(repairs))


def _arguments_string(given: Any) -> str | Rejection:
    if isinstance(given, str):
        return given
    if given is None:
        return "{}"
    if not isinstance(given, dict | list):
        return Rejection(BAD_ARGUMENTS)
    try:
        # Not orjson: it reads integers beyond 64 bit as floats.
        return json.dumps(given, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError):  # 1e400 was read as infinity
        return Rejection(BAD_JSON)


@dataclass(frozen=True, slots=True)
class _Document:
    value: Any
    fenced: bool
    surplus: bool


_HEAD = re.compile(r"[ \t\r\n]*(```[A-Za-z0-9_+-]*[ \t\r\n]*)?")
_TAIL = re.compile(r"[ \t\r\n>}\]]*+")
_FENCED_TAIL = re.compile(r"[ \t\r\n>}\]]*(?:```[ \t\r\n>}\]]*)?")
_SURPLUS = re.compile(r"[>}\]]")

_ALL_BUT_TRAILING_COMMAS = re.compile(
    # A string that never closes is one token up to the end, else each quote in it would start a new scan.
    # Nothing follows the loop, so it never goes back; possessive groups are broken in Python before 3.11.5.
    r"""(?: [^",]+ | "[^"\\]*(?:\\.[^"\\]*)*"? | ,(?![ \t\r\n]*[}\]]) )+""",
    re.DOTALL | re.VERBOSE,
)


def _no_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _read(text: str) -> _Document | None:
    """The JSON value in `text`, in an optional fence and before surplus closers; None if there is more."""
    head = _HEAD.match(text)
    assert head is not None  # it matches the empty string
    try:
        value, end = _DECODER.raw_decode(text, head.end())
    except (ValueError, RecursionError):  # ValueError also for an integer of more than 4300 digits
        return None
    fenced = head[1] is not None
    if not (_FENCED_TAIL if fenced else _TAIL).fullmatch(text, end):
        return None
    return _Document(value, fenced, _SURPLUS.search(text, end) is not None)


def _is_unicode(text: str) -> bool:
    """Whether `text` has no lone surrogate, which no JSON encoder after us could write."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
