"""The content of a request as parts for a reader: a body of any protocol, read by the parsers of the server.

They get one entry at a time. An entry that the server would refuse is shown as its JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from bridge.core.items import Document, FunctionCall, FunctionOutput, FunctionTool, Image, Item, Message, RawItem, Text
from bridge.core.items import Part as ContentPart
from bridge.errors import InvalidRequest
from bridge.exact_json import member, objects, safe_dumps, text_of
from bridge.protocols.cap.decoder import effective_meta
from bridge.protocols.items import EntryReader, read_parts
from bridge.protocols.registry import PROTOCOLS
from bridge.protocols.tooling import read_tools


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a conversation. `kind`: text, reasoning, call, output (of a call), media, or other (its JSON).

    In an answer it may also be a search, a retry or an error.
    """

    role: str
    """Of instructions: the name of their member."""
    kind: str
    text: str
    name: str = ""
    """Of a call, the tool's name; of media and others, their type."""
    call_id: str = ""

    @property
    def words(self) -> str:
        """The text, with the name of a call before it."""
        return f"{self.name} {self.text}" if self.kind == "call" else self.text


def messages_from_body(body: dict[str, Any] | None) -> Iterator[list[Part]]:
    """The parts of the instructions and of each message of the history, in order. A text may be empty."""
    body = body or {}
    if isinstance(payload := body.get("payload"), dict) and "query" in payload:
        # A CAP request does not repeat the earlier turns of its conversation.
        if instructions := effective_meta(payload.get("meta")).get("instructions"):
            yield [Part("instructions", "text", text_of(instructions))]
        files = payload.get("files")
        images = [_media("user", Image(text_of(file))) for file in files] if isinstance(files, list) else []
        yield [Part("user", "text", text_of(payload.get("query"))), *images]
    for name in ("instructions", "system", "systemInstruction", "system_instruction"):
        given = body.get(name)
        if isinstance(given, dict):  # its parts have no types
            yield [Part(name, "text", text_of(part.get("text"))) for part in objects(given.get("parts"))]
        elif isinstance(given, list):
            yield [_content(name, part) for part in given]
        elif given:
            yield [Part(name, "text", text_of(given))]
    reader = EntryReader()
    for name in ("input", "messages", "contents", "prompt"):
        given = body.get(name)
        for entry in [given] if isinstance(given, str) else given if isinstance(given, list) else ():
            yield list(_entry(entry, reader))


def with_words(messages: Iterable[Iterable[Part]]) -> list[Part]:
    """The parts of messages, without empty texts."""
    return [part for parts in messages for part in parts if part.text or part.kind not in ("text", "reasoning")]


def tools_offered(body: dict[str, Any] | None) -> list[str]:
    """The names of the tools in a body, or the type of a tool without a name."""
    found = []
    tools_in_body = objects((body or {}).get("tools"))
    # One form declares functions in lists.
    for data in (each for tool in tools_in_body for each in list(objects(tool.get("functionDeclarations"))) or [tool]):
        try:
            tools = read_tools([data])
            found += [tool.full_name if isinstance(tool, FunctionTool) else tool.type for tool in tools]
        except InvalidRequest:
            found.append(text_of(data.get("name") or data.get("type") or "?"))
    return found


def _entry(entry: Any, reader: EntryReader) -> Iterator[Part]:
    """The parts of an item, or of a Chat message."""
    if not isinstance(entry, dict):
        yield Part("user", "text", text_of(entry))
        return
    thought = entry.get("reasoning_content")
    if isinstance(thought, str) and thought:
        # The parser skips it, because no provider accepts it in a request.
        yield Part("assistant", "reasoning", thought)
    items: list[Item] = []
    try:
        reader.note(reader.read(entry, "input"), items)
    except InvalidRequest:
        items = _foreign_items(entry)
    if items:
        for item in items:
            yield from _item(item)
    elif isinstance(entry.get("content"), list) and entry["content"]:
        for part in entry["content"]:
            yield _content(text_of(entry.get("role") or "user"), part)
    elif entry.get("role") and not entry.get("content"):
        yield Part(text_of(entry["role"]), "text", "")
    else:
        yield Part("user", "other", text_of(entry), text_of(entry.get("type") or "item"))


def _foreign_items(entry: Any) -> list[Item]:
    """The items of an entry that is not in OpenAI's form; none if no protocol can read it."""
    for protocol in PROTOCOLS.values():
        if protocol.recorded is not None:
            with suppress(InvalidRequest):
                return list(protocol.recorded.read_entry(entry, "messages"))
    return []


def _item(item: Item) -> Iterator[Part]:
    if isinstance(item, Message):
        for part in item.parts:
            yield Part(item.role, "text", part.text) if isinstance(part, Text) else _media(item.role, part)
    elif isinstance(item, FunctionCall):
        yield Part("assistant", "call", item.arguments, item.full_name, item.call_id)
    elif isinstance(item, FunctionOutput):
        yield Part("tool", "output", "\n".join(map(_words, item.parts)), "", item.call_id)
    elif item.type == "reasoning":
        yield Part("assistant", "reasoning", _thought(item))
    else:
        yield Part("assistant" if item.type.endswith("_call") else "user", "other", text_of(item.data), item.type)


def _thought(item: RawItem) -> str:
    for name in ("summary", "content"):
        try:
            if text := "\n".join(map(_words, read_parts(item.data.get(name), name))):
                return text
        except InvalidRequest:
            return text_of(item.data[name])
    return ""


def _content(role: str, part: Any) -> Part:
    """A part of a message that the server refuses because of one of its parts."""
    kind = text_of(member(part, "type"))
    try:
        (read,) = read_parts([part], "content")
    except InvalidRequest:
        media = "image" in kind or "audio" in kind or "file" in kind
        return Part(role, "media" if media else "other", safe_dumps(part).decode(), kind)
    return Part(role, "text", read.text) if isinstance(read, Text) else _media(role, read)


def _media(role: str, part: Image | Document) -> Part:
    data = _data(part)
    return Part(role, "media", text_of(data), data["type"])


def _data(part: Image | Document) -> dict[str, str]:
    if isinstance(part, Image):
        return {"type": "input_image", "image_url": part.url}
    return {"type": "input_file", "file_data": part.url, **({} if part.name is None else {"filename": part.name})}


def _words(part: ContentPart) -> str:
    return part.text if isinstance(part, Text) else text_of(_data(part))
