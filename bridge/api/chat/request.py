"""POST /v1/chat/completions: the request's body becomes a Turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pydantic import Field

from bridge.api.reading import (
    Body,
    Effort,
    check_outputs,
    read_call_id,
    read_format,
    read_name,
    read_object,
    read_parts,
    read_string,
    read_tool_choice,
    read_tools,
    validate,
)
from bridge.errors import InvalidRequest
from bridge.turn.items import FunctionCall, FunctionOutput, Item, Message
from bridge.turn.models import ModelChoice
from bridge.turn.turn import Turn


class StreamOptions(Body):
    include_usage: bool | None = None


class ChatBody(Body):
    """The fields that are looked at; the rest is ignored, and named in a response header where it matters."""

    model: str = Field(min_length=1, max_length=256)
    messages: list[Any]
    tools: list[Any] | None = None
    tool_choice: Any = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    reasoning_effort: Effort | None = None
    response_format: dict[str, Any] | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    n: int | None = Field(None, ge=1, le=128)


def parse_chat(data: dict[str, Any], resolve: Callable[[str], ModelChoice]) -> Turn:
    """The Turn of a chat request. Raises InvalidRequest."""
    body = validate(ChatBody, data)
    if not body.messages:
        raise InvalidRequest("'messages' is empty: send at least one message.", param="messages")
    items = tuple(
        item for index, message in enumerate(body.messages) for item in _read_message(message, f"messages[{index}]")
    )
    if not items:
        raise InvalidRequest("'messages' holds nothing to answer.", param="messages")
    check_outputs(items, "messages")
    model = resolve(body.model)
    tools = read_tools(body.tools)
    return Turn(
        endpoint="chat",
        model=model.effective,
        requested_model=model.requested,
        items=items,
        tools=tools,
        tool_choice=read_tool_choice(body.tool_choice, tools),
        effort=body.reasoning_effort or model.effort,
        output_format=read_format(body.response_format, "response_format"),
        stream=body.stream,
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        temperature=body.temperature,
        top_p=body.top_p,
        max_output_tokens=body.max_completion_tokens or body.max_tokens,
        n=body.n,
    )


def _read_message(value: Any, place: str) -> Iterator[Item]:
    """One chat message is a message, and for an assistant also its calls; a `tool` message is an output."""
    data = read_object(value, place)
    role = data.get("role")
    content = f"{place}.content"
    if role in ("system", "developer", "user"):
        parts = read_parts(data.get("content"), content)
        if not parts:
            raise InvalidRequest(f"Invalid {content!r}: a {role} message needs content.", param=content)
        yield Message(role, parts)
    elif role == "assistant":
        said = read_parts(data.get("content"), content) or read_parts(data.get("refusal"), f"{place}.refusal")
        if said:
            yield Message("assistant", said)
        calls = data.get("tool_calls") or []
        if not isinstance(calls, list):
            raise InvalidRequest(f"Invalid {place + '.tool_calls'!r}: expected a list.", param=f"{place}.tool_calls")
        for index, call in enumerate(calls):
            yield _read_call(call, f"{place}.tool_calls[{index}]")
    elif role == "tool":
        call_id = read_call_id(data.get("tool_call_id"), f"{place}.tool_call_id")
        yield FunctionOutput(call_id, read_parts(data.get("content"), content))
    else:
        raise InvalidRequest(f"Invalid {place + '.role'!r}: {role!r}.", param=f"{place}.role")


def _read_call(value: Any, place: str) -> FunctionCall:
    data = read_object(value, place)
    function = read_object(data.get("function"), f"{place}.function")
    return FunctionCall(
        read_call_id(data.get("id"), f"{place}.id"),
        read_name(function.get("name"), f"{place}.function.name"),
        read_string(function.get("arguments"), f"{place}.function.arguments"),
    )
