"""POST /v1/responses: the request's body becomes a Turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

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
from bridge.turn.items import FunctionCall, FunctionOutput, Item, Message, RawItem, Text
from bridge.turn.models import ModelChoice
from bridge.turn.turn import Turn

ROLES = ("system", "developer", "user", "assistant")
PASSED_ON = frozenset({"reasoning", "web_search_call", "custom_tool_call", "custom_tool_call_output"})
"""Item types that are given to the backend verbatim."""


class Reasoning(Body):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None


class TextOptions(Body):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class StreamOptions(Body):
    include_usage: bool | None = None


class ResponsesBody(Body):
    """The fields that are looked at; the rest is echoed or ignored."""

    model: str = Field(min_length=1, max_length=256)
    input: Any = None
    instructions: str | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    max_output_tokens: int | None = Field(None, ge=1)
    metadata: dict[str, str] | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None


def parse_responses(data: dict[str, Any], resolve: Callable[[str], ModelChoice]) -> Turn:
    """The Turn of a responses request. Raises InvalidRequest."""
    body = validate(ResponsesBody, data)
    if body.previous_response_id is not None or body.conversation is not None:
        field = "previous_response_id" if body.previous_response_id is not None else "conversation"
        raise InvalidRequest(
            f"{field!r} is not supported: send the whole conversation in 'input'.",
            param=field,
            code="unsupported_parameter",
        )
    if body.background:
        raise InvalidRequest(
            "'background' is not supported: wait for the answer, or stream it.",
            param="background",
            code="unsupported_parameter",
        )
    items = read_input(body.input)
    model = resolve(body.model)
    tools = read_tools(body.tools)
    reasoning = body.reasoning or Reasoning()
    return Turn(
        endpoint="responses",
        model=model.effective,
        requested_model=model.requested,
        items=items,
        instructions=body.instructions or None,
        tools=tools,
        tool_choice=read_tool_choice(body.tool_choice, tools),
        effort=reasoning.effort or model.effort,
        summary=reasoning.summary,
        output_format=read_format(body.text.format if body.text else None, "text.format"),
        stream=body.stream,
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        temperature=body.temperature,
        top_p=body.top_p,
        max_output_tokens=body.max_output_tokens,
    )


def read_input(value: Any) -> tuple[Item, ...]:
    """`input`: a string is one user message. Raises InvalidRequest when there is nothing to answer."""
    if value is None or value in ("", []):
        raise InvalidRequest("'input' is empty: send a text or a list of items.", param="input")
    if isinstance(value, str):
        return (Message("user", (Text(value),)),)
    if not isinstance(value, list):
        raise InvalidRequest("Invalid 'input': expected a string or a list of items.", param="input")
    items = tuple(_read_item(item, f"input[{index}]") for index, item in enumerate(value))
    check_outputs(items, "input")
    return items


def _read_item(value: Any, place: str) -> Item:
    data = read_object(value, place)
    kind = data.get("type", "message" if "role" in data else None)
    if kind == "message":
        role = data.get("role")
        if role not in ROLES:
            raise InvalidRequest(f"Invalid {place + '.role'!r}: {role!r}.", param=f"{place}.role")
        return Message(role, read_parts(data.get("content"), f"{place}.content"))
    if kind == "function_call":
        return FunctionCall(
            read_call_id(data.get("call_id"), f"{place}.call_id"),
            read_name(data.get("name"), f"{place}.name"),
            read_string(data.get("arguments"), f"{place}.arguments"),
        )
    if kind == "function_call_output":
        return FunctionOutput(
            read_call_id(data.get("call_id"), f"{place}.call_id"),
            read_parts(data.get("output"), f"{place}.output"),
        )
    if isinstance(kind, str) and kind in PASSED_ON:
        return RawItem(kind, data)
    raise InvalidRequest(
        f"Invalid {place + '.type'!r}: items of type {kind!r} are not supported.",
        param=f"{place}.type",
        code="unsupported_item",
    )
