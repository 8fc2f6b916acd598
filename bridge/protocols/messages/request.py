"""POST /v1/messages: the request's body becomes a Turn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import orjson
from pydantic import Field

from bridge import exact_json
from bridge.core.images import open_document
from bridge.core.items import (
    FAILED,
    Document,
    FunctionCall,
    FunctionOutput,
    Image,
    Item,
    Message,
    Part,
    Text,
)
from bridge.core.turn import Turn
from bridge.errors import InvalidRequest
from bridge.protocols.items import check_number, missing_call, read_call_id, read_name
from bridge.protocols.messages.models import thought_of_client
from bridge.protocols.messages.protocol import UNSUPPORTED_THREAD
from bridge.protocols.messages.tools import read_offer
from bridge.protocols.reading import Body, effort_of_budget, read_object, read_string, validate
from bridge.protocols.tooling import read_format

MAX_STOPS = 16


class Thinking(Body):
    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: int | None = Field(None, ge=1)
    display: Literal["summarized", "omitted"] | None = None


class OutputConfig(Body):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: dict[str, Any] | None = None


class MessagesBody(Body):
    """The fields that are read; others are ignored, and named in a response header if they matter."""

    model: str = Field(min_length=1, max_length=256)
    messages: list[Any]
    system: Any = None
    max_tokens: int | None = Field(None, ge=1)
    tools: list[Any] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None
    stop_sequences: list[str] | None = Field(None, max_length=MAX_STOPS)
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: float | None = Field(None, ge=0, le=1)
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None


FIELD_NAMES: Mapping[str, str] = {
    "reasoning.effort": "output_config.effort",
    "include:reasoning.encrypted_content": "thinking.signature",
    "text.format": "output_config.format",
    "max_output_tokens": "max_tokens",
    "tools:web_search": "tools:web_search",
}


def parse_messages(data: dict[str, Any]) -> Turn:
    """The Turn of a request. Raises InvalidRequest."""
    body = validate(MessagesBody, data)
    if not body.messages:
        raise InvalidRequest("'messages' is empty: send at least one message.", param="messages")
    if data.get("thread") is not None:
        # The SDK's tool runner then sends the whole history instead.
        raise InvalidRequest(
            "'thread' is not supported here: send the whole conversation in 'messages'.",
            param="thread",
            code=UNSUPPORTED_THREAD,
        )
    offer = read_offer(body.tools or (), body.tool_choice)
    config = body.output_config or OutputConfig()
    wanted = read_format(config.format, "output_config.format") or read_format(body.output_format, "output_format")
    return Turn(
        model=body.model,
        requested_model=body.model,
        items=_read_items(body.messages, body.model),
        instructions=read_system(body.system),
        tools=offer.functions,
        tool_choice=offer.choice,
        effort=_effort(body.thinking, config),
        output_format=None if wanted is None else replace(wanted, strict=True),
        stream=bool(body.stream),
        include_usage=True,
        temperature=body.temperature,
        top_p=body.top_p,
        max_output_tokens=body.max_tokens,
        parallel=offer.parallel,
        stop=tuple(text for text in body.stop_sequences or () if text),
        web_search=offer.search,
        # A client that does not ask for thinking does not expect a block before the text.
        encrypted_reasoning=body.thinking is not None and body.thinking.type != "disabled",
        session=_session(body.metadata or {}),
        field_names=FIELD_NAMES,
    )


def _effort(thinking: Thinking | None, config: OutputConfig) -> str | None:
    """The effort, or the one whose budget is as large. Without thinking the model decides: not every model can stop."""
    if thinking is not None and thinking.type == "disabled":
        return None
    if config.effort is None and thinking is not None and thinking.budget_tokens is not None:
        return effort_of_budget(thinking.budget_tokens)
    return config.effort


_SESSION = re.compile(r"_session_([0-9a-f-]{36})$")


def _session(metadata: Mapping[str, Any]) -> str | None:
    """The conversation that Claude Code names in its `user_id`: at its end, or in a JSON object."""
    user = metadata.get("user_id")
    if not isinstance(user, str):
        return None
    if found := _SESSION.search(user):
        return found[1]
    try:
        named = orjson.loads(user).get("session_id")
    except (orjson.JSONDecodeError, AttributeError):
        return None
    return named if isinstance(named, str) and named else None


# The system prompt and the messages

BILLING = "x-anthropic-billing-header:"
"""The beginning of Claude Code's first block of the system prompt. It is not for the model, and it differs between
requests, so that the provider would not find the prompt in its cache."""

SKIPPED = (
    "server_tool_use",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
)
"""Blocks about tools that a provider has run itself. Only it could read them, and the text has the result."""


def read_system(system: Any) -> str | None:
    """`system`: a text, or blocks of text."""
    if not isinstance(system, str | list | None):
        raise InvalidRequest("Invalid 'system': expected a string or a list of text blocks.", param="system")
    blocks = [system] if isinstance(system, str) else system or ()
    texts = [
        block if isinstance(block, str) else read_text(block, f"system[{index}]") for index, block in enumerate(blocks)
    ]
    return "\n\n".join(text for text in texts if text.strip() and not text.startswith(BILLING)) or None


def read_text(value: Any, place: str) -> str:
    """The text of a block that must be one."""
    block = read_object(value, place)
    if block.get("type") != "text":
        raise _unsupported(block, place, "only text is supported here")
    return read_string(block.get("text"), f"{place}.text")


def _read_items(messages: Sequence[Any], model: str) -> tuple[Item, ...]:
    items: list[Item] = []
    called: set[str] = set()
    size = 0
    for index, message in enumerate(messages):
        for item in read_message(message, f"messages[{index}]", model):
            if isinstance(item, FunctionCall):
                called.add(item.call_id)
            elif isinstance(item, FunctionOutput) and item.call_id not in called:
                raise missing_call(item.call_id, "messages")
            items.append(item)
            size += max(1, len(item.parts)) if isinstance(item, Message | FunctionOutput) else 1
            check_number(size, "messages")
    if not items:
        raise InvalidRequest("'messages' holds nothing to answer.", param="messages")
    return tuple(items)


def read_message(value: Any, place: str, model: str = "") -> Iterator[Item]:
    """The items of a message: texts and images that follow each other are one, each call, output and thought another.

    `model` is that of the request. Raises InvalidRequest.
    """
    message = read_object(value, place)
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise InvalidRequest(f"Invalid {place + '.role'!r}: {role!r}. Use user or assistant.", param=f"{place}.role")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}] if content else []
    place = f"{place}.content"
    if not isinstance(content, list):
        raise InvalidRequest(f"Invalid {place!r}: expected a string or a list of blocks.", param=place)
    if not content and role != "assistant":
        raise InvalidRequest(f"Invalid {place!r}: a {role} message needs content.", param=place)
    check_number(len(content), place)
    parts: list[Part] = []
    for index, entry in enumerate(content):
        here = f"{place}[{index}]"
        block = read_object(entry, here)
        kind = str(block.get("type"))
        if kind in _PARTS:
            parts += _read_part(block, here)
        elif (role, kind) in _ITEMS:
            if parts:
                yield Message(role, tuple(parts))
                parts = []
            item = _ITEMS[role, kind](block, here, model)
            if item is not None:
                yield item
        elif role != "assistant" or kind not in SKIPPED:
            raise _unsupported(block, here)
    if parts:
        yield Message(role, tuple(parts))


def _read_thought(block: Mapping[str, Any], place: str, model: str) -> Item | None:
    for name in ("data",) if block["type"] == "redacted_thinking" else ("thinking",):
        read_string(block.get(name), f"{place}.{name}")
    if block.get("signature") is not None:
        read_string(block["signature"], f"{place}.signature")
    return thought_of_client(block, model)


def _read_call(block: Mapping[str, Any], place: str, model: str) -> Item:
    given = read_object(block.get("input"), f"{place}.input")
    name = read_string(block.get("name"), f"{place}.name")
    return FunctionCall(
        read_call_id(block.get("id"), f"{place}.id"), read_name(name, f"{place}.name"), exact_json.dumps(given).decode()
    )


def _read_output(block: Mapping[str, Any], place: str, model: str) -> Item:
    call_id = read_call_id(block.get("tool_use_id"), f"{place}.tool_use_id")
    content = block.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}] if content else []
    if not isinstance(content, list | None):
        raise InvalidRequest(
            f"Invalid {place + '.content'!r}: expected a string or a list of blocks.", param=f"{place}.content"
        )
    parts: list[Part] = [FAILED] if block.get("is_error") is True else []
    for index, part in enumerate(content or ()):
        here = f"{place}.content[{index}]"
        parts += _read_part(read_object(part, here), here)
    return FunctionOutput(call_id, tuple(parts))


_ITEMS = {
    ("assistant", "thinking"): _read_thought,
    ("assistant", "redacted_thinking"): _read_thought,
    ("assistant", "tool_use"): _read_call,
    ("user", "tool_result"): _read_output,
}
_PARTS = ("text", "image", "document", "search_result", "tool_reference")


def _read_part(block: Mapping[str, Any], place: str) -> list[Part]:
    """A block as texts, images and documents."""
    kind = block.get("type")
    if kind == "text":
        return [Text(read_string(block.get("text"), f"{place}.text"))]
    if kind == "image":
        return [_read_image(read_object(block.get("source"), f"{place}.source"), f"{place}.source")]
    if kind == "document":
        return _read_document(block, place)
    if kind == "search_result":
        head = "\n".join(read_string(block.get(name), f"{place}.{name}") for name in ("title", "source"))
        texts = block.get("content")
        if not isinstance(texts, list):
            raise InvalidRequest(f"Invalid {place + '.content'!r}: expected a list.", param=f"{place}.content")
        return [Text(head), *(Text(read_text(text, f"{place}.content[{at}]")) for at, text in enumerate(texts))]
    if kind == "tool_reference":
        return [Text(f"The tool {read_string(block.get('tool_name'), f'{place}.tool_name')} is available.")]
    raise _unsupported(block, place)


def _read_image(source: Mapping[str, Any], place: str) -> Image:
    kind = source.get("type")
    if kind == "base64":
        media_type = read_string(source.get("media_type"), f"{place}.media_type")
        return Image(f"data:{media_type};base64,{read_string(source.get('data'), f'{place}.data')}")
    if kind == "url":
        return Image(read_string(source.get("url"), f"{place}.url"))
    raise _unsupported(source, place, "send the image itself, as base64")


def _read_document(block: Mapping[str, Any], place: str) -> list[Part]:
    """A document. One of texts and images becomes these, with its title before them; a PDF keeps its title as name."""
    place = f"{place}.source"
    source = read_object(block.get("source"), place)
    title, context = (block[name] if isinstance(block.get(name), str) else "" for name in ("title", "context"))
    head = [Text(text) for text in (title, context) if text]
    kind, content = source.get("type"), source.get("content")
    if kind == "text":
        return [*head, Text(read_string(source.get("data"), f"{place}.data"))]
    if kind == "content" and isinstance(content, str):
        return [*head, Text(content)]
    if kind == "content" and isinstance(content, list):
        here = f"{place}.content"
        nested = [_read_part(read_object(part, f"{here}[{at}]"), f"{here}[{at}]") for at, part in enumerate(content)]
        return [*head, *(part for parts in nested for part in parts)]
    return [*([Text(context)] if context else []), _read_file(source, place, title or None)]


def _read_file(source: Mapping[str, Any], place: str, name: str | None) -> Part:
    if source.get("type") == "url":
        return Document(read_string(source.get("url"), f"{place}.url"), name)
    if source.get("type") != "base64":
        raise _unsupported(source, place, "send the document itself, as base64")
    media_type = read_string(source.get("media_type"), f"{place}.media_type")
    try:
        return open_document(media_type, read_string(source.get("data"), f"{place}.data"), name)
    except ValueError:
        why = f"Invalid {place!r}: expected a media type, and data as base64; a text in UTF-8."
        raise InvalidRequest(why, param=f"{place}.data") from None


def _unsupported(block: Mapping[str, Any], place: str, remedy: str = "use text, images or documents") -> InvalidRequest:
    return InvalidRequest(
        f"Invalid {place!r}: content of type {block.get('type')!r} is not supported; {remedy}.",
        param=f"{place}.type",
        code="unsupported_content",
    )
