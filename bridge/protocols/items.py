"""The conversation in a body: messages, calls, outputs and items, in the form of either OpenAI protocol.

Clients mix the two (a chat body whose messages have `function_call_output` items, a Responses input with `tool`
messages), so one reader accepts both.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from bridge.core.images import PDF, open_document
from bridge.core.items import Document, FunctionCall, FunctionOutput, Image, Item, Message, Part, RawItem, Text
from bridge.errors import InvalidRequest
from bridge.protocols.reading import invalid, read_list, read_object, read_string

# Compaction: a conversation's summary as an opaque item. Nothing in it is secret, because the client has sent all of
# it: the encoding only keeps clients from depending on its form.

PREFIX = "cbc1."
MAX_SUMMARY = 1024 * 1024

PROMPT = """\
Summarise the conversation so far, for somebody who has to continue it without having seen it: what is wanted, what \
was decided, what has been done and found out (names, numbers, identifiers and quotes exactly), and what is left to \
do. Answer with the summary alone."""

INTRODUCTION = "Summary of the conversation so far:\n"


def compaction_item(item_id: str, summary: str) -> dict[str, Any]:
    """The item that replaces everything before it."""
    packed = base64.urlsafe_b64encode(zlib.compress(summary.encode())).decode()
    return {"type": "compaction", "id": item_id, "encrypted_content": PREFIX + packed}


def summary_of(item: Mapping[str, Any]) -> str | None:
    """The summary in a compaction item of ours; None for anything else."""
    packed = item.get("encrypted_content")
    if not isinstance(packed, str) or not packed.startswith(PREFIX):
        return None
    try:
        unpacker = zlib.decompressobj()
        summary = unpacker.decompress(base64.urlsafe_b64decode(packed.removeprefix(PREFIX)), MAX_SUMMARY)
        return INTRODUCTION + summary.decode() if unpacker.eof else None
    except (binascii.Error, zlib.error, UnicodeDecodeError, ValueError):
        return None


_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.:-]")
_CALL_ID = re.compile(r"[A-Za-z0-9_.:|/+=@#~$-]{1,256}")

PASSED_ON = (
    "web_search_call",
    "local_shell_call",
    "tool_search_call",
    "tool_search_output",
    "image_generation_call",
)
"""Item types that are passed to the backend unchanged."""

TOOLS_ITEM = "additional_tools"
"""An item that offers tools. It is not part of the conversation."""

MAX_ITEMS = 20_000
"""Items of a conversation, counting each part of a message: all requests wait while they are read."""


def read_items(values: Iterable[Any], place: str, before: Iterable[Item] = ()) -> tuple[Item, ...]:
    """The items `before`, and those at `place`. Raises InvalidRequest for items that no backend accepts."""
    items: list[Item] = []
    reader = EntryReader()
    reader.note(before, items)
    for index, value in enumerate(values):
        entry = reader.read(value, f"{place}[{index}]")
        reader.note((item for item in entry if not _is_plain_thought(item)), items)
        check_number(max(index + 1, reader.size), place)
    _check_outputs(items, place)
    return tuple(items)


def _is_plain_thought(item: Item) -> bool:
    """Reasoning means something to its provider only in its encrypted form."""
    return isinstance(item, RawItem) and item.type == "reasoning" and not item.data.get("encrypted_content")


def check_number(number: int, place: str) -> None:
    """Raise InvalidRequest for more items than a conversation may have."""
    if number > MAX_ITEMS:
        raise InvalidRequest(
            f"Too many items: a conversation has at most {MAX_ITEMS:,}, with the parts of its messages and with what "
            "it continues. Leave out the oldest, or send a summary of them.",
            param=place,
            code="too_many_items",
        )


class EntryReader:
    """Reads one entry at a time, and keeps the calls so far, for entries that refer to them, and the size."""

    def __init__(self) -> None:
        self.size = 0
        self._count = 0
        self._custom: set[str] = set()
        self._by_name: dict[str, str] = {}

    def note(self, new: Iterable[Item], items: list[Item]) -> None:
        """Append `new` items, each before the next one is read."""
        for item in new:
            items.append(item)
            self.size += max(1, len(item.parts)) if isinstance(item, Message | FunctionOutput) else 1
            if isinstance(item, FunctionCall):
                self._count += 1
                self._by_name[item.name] = item.call_id
                if item.custom:
                    self._custom.add(item.call_id)

    def read(self, value: Any, place: str) -> Iterator[Item]:
        """The items of an entry: a message with calls is several. Raises InvalidRequest for an unknown form."""
        data = read_object(value, place)
        kind = data.get("type")
        if kind is None and "role" not in data and "call_id" in data:
            kind = "function_call_output" if "output" in data else "function_call"
        if kind == "message" or (kind is None and "role" in data):
            yield from self._message(data, place)
        elif kind in ("function_call", "custom_tool_call"):
            yield _read_call(data, place, custom=kind == "custom_tool_call")
        elif kind in ("function_call_output", "custom_tool_call_output"):
            call_id = read_call_id(data.get("call_id"), f"{place}.call_id")
            parts = read_parts(data.get("output"), f"{place}.output")
            yield FunctionOutput(call_id, parts, kind == "custom_tool_call_output")
        elif kind == "reasoning":
            yield RawItem(kind, {name: value for name, value in data.items() if name != "status"})
        elif kind == "compaction":
            summary = summary_of(data)
            if summary is None:
                raise invalid(place, "this compaction was not made here")
            yield Message("user", (Text(summary),))
        elif kind in PASSED_ON:
            yield RawItem(str(kind), data)
        elif kind == "item_reference":
            why = f"the item {data.get('id')!r} is not stored here (any more). Send the item itself"
            raise invalid(place, why, code="item_not_found")
        elif kind != TOOLS_ITEM:
            raise invalid(f"{place}.type", f"items of type {kind!r} are not supported", code="unsupported_item")

    def _message(self, data: dict[str, Any], place: str) -> Iterator[Item]:
        """A message; for an assistant also its calls. A `tool` message is an output."""
        role = data.get("role")
        parts = read_parts(data.get("content"), f"{place}.content")
        if role in ("system", "developer", "user"):
            if not parts:
                raise invalid(f"{place}.content", f"a {role} message needs content")
            yield Message(role, parts)
        elif role == "assistant":
            if said := parts or read_parts(data.get("refusal"), f"{place}.refusal"):
                yield Message("assistant", said)
            calls = read_list(data.get("tool_calls") or [], f"{place}.tool_calls")
            check_number(len(calls), f"{place}.tool_calls")
            for index, call in enumerate(calls):
                yield _read_tool_call(call, f"{place}.tool_calls[{index}]")
            if data.get("function_call") is not None:
                # The old form. It has no id, so it gets one.
                old = read_object(data["function_call"], f"{place}.function_call")
                yield _read_function(old, f"{place}.function_call", f"call_{self._count}")
        elif role == "tool":
            call_id = read_call_id(data.get("tool_call_id"), f"{place}.tool_call_id")
            yield FunctionOutput(call_id, parts, call_id in self._custom)
        elif role == "function":
            # The old form: it belongs to the last call with its name.
            name = _past_name(data.get("name"), f"{place}.name")
            if name not in self._by_name:
                raise invalid(place, f"no call of {name!r} stands before its result")
            yield FunctionOutput(self._by_name[name], parts)
        else:
            raise invalid(f"{place}.role", repr(role))


def _read_call(data: dict[str, Any], place: str, *, custom: bool) -> FunctionCall:
    namespace = data.get("namespace")
    call_id = read_call_id(data.get("call_id"), f"{place}.call_id")
    call = _read_function(data, place, call_id, custom=custom)
    return call if namespace is None else replace(call, namespace=read_name(namespace, f"{place}.namespace"))


def _read_tool_call(value: Any, place: str) -> FunctionCall:
    data = read_object(value, place)
    custom = data.get("type") == "custom"
    member = "custom" if custom else "function"
    function = read_object(data.get(member), f"{place}.{member}")
    return _read_function(function, f"{place}.{member}", read_call_id(data.get("id"), f"{place}.id"), custom=custom)


def _read_function(data: dict[str, Any], place: str, call_id: str, *, custom: bool = False) -> FunctionCall:
    """The name and the arguments of a call, which every form of a call has."""
    given = "input" if custom else "arguments"
    name = _past_name(data.get("name"), f"{place}.name")
    return FunctionCall(call_id, name, read_string(data.get(given), f"{place}.{given}"), custom=custom)


def read_call_id(value: Any, place: str) -> str:
    """The id of a call. It is written into prompts, so it must not look like anything else."""
    if not isinstance(value, str) or not _CALL_ID.fullmatch(value):
        raise invalid(place, "a call id has 1 to 256 letters, digits or punctuation")
    return value


def read_name(value: Any, place: str) -> str:
    """The name of a function."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InvalidRequest(
            f"Invalid {place!r}: a function's name has 1 to 128 letters, digits or any of _ . : -", param=place
        )
    return value


def _past_name(value: Any, place: str) -> str:
    """The name of a function that was called earlier, perhaps by another provider: odd characters become `_`."""
    if not isinstance(value, str) or not value:
        raise invalid(place, "a call has the name of its function")
    return _NOT_IN_NAMES.sub("_", value)[:128]


def read_parts(content: Any, place: str) -> tuple[Part, ...]:
    """Message content: a string, null, or a list of text, image and file parts in the form of either protocol."""
    if content is None:
        return ()
    if isinstance(content, str):
        return (Text(content),)
    if not isinstance(content, list):
        raise invalid(place, "expected a string or a list of parts")
    check_number(len(content), place)
    return tuple(_read_part(part, f"{place}[{index}]") for index, part in enumerate(content))


def _read_part(value: Any, place: str) -> Part:
    if isinstance(value, str):
        return Text(value)
    part = read_object(value, place)
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text", "summary_text", "reasoning_text"):
        return Text(read_string(part.get("text"), f"{place}.text"))
    if kind == "refusal":
        return Text(read_string(part.get("refusal"), f"{place}.refusal"))
    if kind in ("image_url", "input_image"):
        source: Any = part.get("image_url")
        detail: Any = part.get("detail")
        if isinstance(source, dict):
            source, detail = source.get("url"), source.get("detail")
        return Image(read_string(source, f"{place}.image_url"), detail if isinstance(detail, str) else None)
    if kind in ("input_file", "file"):
        nested = part.get("file")
        file, here = (nested, f"{place}.file") if isinstance(nested, dict) else (part, place)
        if file.get("file_data") is None and not file.get("file_url"):
            why = "a file that a provider stores cannot be passed on; send the file itself as a data URL in 'file_data'"
            raise invalid(f"{place}.type", why, code="unsupported_content")
        return _read_file(file, here)
    why = f"content of type {kind!r} is not supported; use text, image or file parts"
    raise invalid(f"{place}.type", why, code="unsupported_content")


_DATA_URL = re.compile(r"data:([^;,]+)(?:;[^;,]*)*;base64,", re.IGNORECASE)
_PDF = base64.b64encode(b"%PDF-")[:6].decode()
"""How the base64 of every PDF begins. Some clients send it without the head of a data URL."""


def _read_file(part: Mapping[str, Any], place: str) -> Part:
    data, url, name = part.get("file_data"), part.get("file_url"), part.get("filename")
    name = name if isinstance(name, str) and name else None
    if data is None:
        return Document(read_string(url, f"{place}.file_url"), name)
    data = read_string(data, f"{place}.file_data")
    head = _DATA_URL.match(data)
    kind = head[1] if head is not None else PDF if data.startswith(_PDF) else ""
    try:
        return open_document(kind, data[head.end() if head is not None else 0 :], name)
    except ValueError:
        raise invalid(f"{place}.file_data", "expected a data URL with base64 (data:application/pdf;base64,…)") from None


def _check_outputs(items: Iterable[Item], place: str) -> None:
    """Every function output must follow its call: Codex would drop it silently otherwise."""
    called: set[str] = set()
    for item in items:
        if isinstance(item, FunctionCall):
            called.add(item.call_id)
        elif isinstance(item, FunctionOutput) and item.call_id not in called:
            raise missing_call(item.call_id, place)


def missing_call(call_id: str | None, place: str) -> InvalidRequest:
    """The error for an output without its call."""
    return InvalidRequest(
        f"No tool call found for the output with call_id {call_id!r}. Send the call and its output together.",
        param=place,
        code="missing_function_call",
    )
