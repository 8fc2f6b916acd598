"""What we send, held against the official client's own types: strictly, and without members that they do not know.

The client itself reads leniently; its types name every member that there is. What may be missing or null is more exact
in the Open Responses specification, so responses and their events are held against that too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anthropic.types import Message, RawMessageStreamEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from protocols import open_responses
from pydantic import BaseModel, TypeAdapter

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
MESSAGE_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)

MEANT = {
    "Response.presence_penalty",  # the Open Responses specification demands it
    "Response.frequency_penalty",  # the same
    "Response.store",  # OpenAI sends it too; the type leaves it out
    "ResponseCustomToolCall.status",  # the same
    "ResponseFunctionCallArgumentsDoneEvent.name",  # the client's types before version 3 demand it
    "ResponseError.bridge_code",
    "ResponseUsage.estimated",
    "CompletionUsage.estimated",
    "ChatCompletionMessage.reasoning_content",
    "ChoiceDelta.reasoning_content",
    "Usage.estimated",
    "MessageDeltaUsage.estimated",
}
"""Members that we send beside those of the types."""


def unknown_members(value: Any) -> Iterator[str]:
    """The members, at any depth, that the types have no place for."""
    if isinstance(value, BaseModel):
        for name in value.model_extra or ():
            yield f"{type(value).__name__}.{name}"
        for name in type(value).model_fields:
            yield from unknown_members(getattr(value, name))
    elif isinstance(value, list):
        for entry in value:
            yield from unknown_members(entry)


def check_event(payload: dict[str, Any]) -> None:
    """One event of a Responses stream."""
    open_responses.check_event(payload)
    event = EVENT.validate_python(payload, strict=True)
    assert event.type == payload["type"]
    _check_members(event)


def check_response(body: dict[str, Any]) -> None:
    """A response object: valid, and no member of the newest type is missing."""
    open_responses.check_response(body)
    missing = Response.model_fields.keys() - body.keys()
    assert not missing, missing
    _check_members(Response.model_validate(body, strict=True))


def check_chunk(payload: dict[str, Any]) -> None:
    """One chunk of a chat stream.

    The chunk's type knows calls of functions alone (the completion's knows both), so the call of a custom tool is
    checked as one of a function.
    """
    choices = [choice | {"delta": _with_functions(choice["delta"])} for choice in payload["choices"]]
    _check_members(ChatCompletionChunk.model_validate(payload | {"choices": choices}, strict=True))


def check_completion(body: dict[str, Any]) -> None:
    """A chat completion."""
    _check_members(ChatCompletion.model_validate(body, strict=True))


def check_message_event(payload: dict[str, Any]) -> None:
    """One event of a Messages stream, other than `ping` and `error`, which the client handles by itself."""
    _check_members(MESSAGE_EVENT.validate_python(payload, strict=True))


def check_message(body: dict[str, Any]) -> None:
    """A message."""
    _check_members(Message.model_validate(body, strict=True))


def _check_members(value: BaseModel) -> None:
    unknown = set(unknown_members(value)) - MEANT
    assert not unknown, unknown


def _with_functions(delta: dict[str, Any]) -> dict[str, Any]:
    if "tool_calls" not in delta:
        return delta
    return delta | {"tool_calls": [_as_function(call) for call in delta["tool_calls"]]}


def _as_function(call: dict[str, Any]) -> dict[str, Any]:
    if "custom" not in call:
        return call
    assert call.get("type", "custom") == "custom"
    function = {{"input": "arguments"}.get(name, name): value for name, value in call["custom"].items()}
    kept = {name: value for name, value in call.items() if name not in ("custom", "type")}
    return {**kept, "function": function, **({"type": "function"} if "type" in call else {})}
