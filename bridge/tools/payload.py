"""A call as text: its tags, the JSON between them (payloads.md §4), and the arguments of functions and custom tools.

All functions take linear time, whatever the text is: the JSON is read at most twice, and every quantifier of every
pattern is possessive.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn

import orjson

from bridge.core.items import FunctionTool

TAG = "tool_call"
OPEN_TAG = f"<{TAG}>"
CLOSE_TAG = f"</{TAG}>"
_TAGS = re.compile(f"</?{TAG}>")


def neutralise(text: str) -> str:
    """Write the `<` of each exact tag as `&lt;`; everything else stays byte for byte.

    Text from users, tool output or history must never show the model a foreign well-formed call: the model
    could take it for one of its own and repeat it, and the client would execute it. Applying it again changes
    nothing.
    """
    if "tool_call>" not in text:
        return text
    return text.replace(OPEN_TAG, "&lt;" + OPEN_TAG[1:]).replace(CLOSE_TAG, "&lt;" + CLOSE_TAG[1:])


def neutralise_parts(texts: Sequence[str]) -> list[str]:
    """The same for consecutive texts: a tag may begin in one and end in the next."""
    joined = "".join(texts)
    begins = [found.start() for found in _TAGS.finditer(joined)]
    if not begins:
        return list(texts)
    safe = []
    position = 0
    for text in texts:
        here = begins[bisect_left(begins, position) : bisect_left(begins, position + len(text))]
        cuts = [0, *(begin - position for begin in here), len(text)]
        pieces = [text[start:end] for start, end in pairwise(cuts)]
        safe.append(pieces[0] + "".join("&lt;" + piece[1:] for piece in pieces[1:]))
        position += len(text)
    return safe


BAD_JSON = "bad_json"
NOT_AN_OBJECT = "not_an_object"
NO_NAME = "no_name"
BAD_ARGUMENTS = "bad_arguments"

FENCE = "```"


@dataclass(frozen=True, slots=True)
class Payload:
    """The calls of one block in order, each a name and its arguments string, and the repairs."""

    calls: tuple[tuple[str, str], ...]
    repairs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a block is not a call."""

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
        repaired = "".join(_ALL_BUT_TRAILING_COMMAS.findall(text))
        document = _read(repaired) if len(repaired) < len(text) else None
        if document is None:
            return Rejection(BAD_JSON)
        repairs.append("trailing_comma")
    value, around = document
    repairs += around

    members = [value]
    if isinstance(value, list):
        members = value
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


def _read(text: str) -> tuple[Any, list[str]] | None:
    """The JSON value in `text`, and what is around it: a fence, surplus closers. None if there is more."""
    head = _HEAD.match(text)
    assert head is not None  # it matches the empty string
    try:
        value, end = _DECODER.raw_decode(text, head.end())
    except (ValueError, RecursionError):  # ValueError also for an integer of more than 4300 digits
        return None
    fenced = head[1] is not None
    if not (_FENCED_TAIL if fenced else _TAIL).fullmatch(text, end):
        return None
    return value, ["code_fence"] * fenced + ["surplus_suffix"] * (_SURPLUS.search(text, end) is not None)


def _is_unicode(text: str) -> bool:
    """Whether `text` has no lone surrogate, which no JSON encoder after us could write."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


INPUT = "input"


def function_of(definition: Mapping[str, Any], name: str, namespace: str | None = None) -> FunctionTool:
    """A custom tool as a function of its text. No backend enforces a grammar, so the description has it."""
    description = definition.get("description")
    texts = [description] if isinstance(description, str) and description else []
    grammar = definition.get("format")
    if isinstance(grammar, dict) and isinstance(grammar.get("grammar"), dict):
        grammar = grammar["grammar"]  # as chat spells it
    if isinstance(grammar, dict) and isinstance(grammar.get("definition"), str):
        texts.append(f"The input must match this {grammar.get('syntax', '')} grammar:\n{grammar['definition']}")
    parameters = {
        "type": "object",
        "properties": {INPUT: {"type": "string", "description": "The whole input of the tool, as plain text."}},
        "required": [INPUT],
        "additionalProperties": False,
    }
    return FunctionTool(name, "\n\n".join(texts) or None, parameters, namespace=namespace, raw=definition)


def text_of(arguments: str) -> str:
    """The text in a call's arguments. A text without the JSON around it is accepted, too."""
    try:
        given = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = given.get(INPUT) if isinstance(given, dict) else given
    return text if isinstance(text, str) else arguments


def arguments_of(text: str) -> str:
    """The arguments with a text, for the history."""
    return orjson.dumps({INPUT: text}).decode()


def arguments_or_none(arguments: str) -> str:
    """A function's arguments; `{}` for blank ones, which clients could not parse."""
    return arguments if arguments.strip() else "{}"
