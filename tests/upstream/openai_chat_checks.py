"""What the scripted server demands of a request: all that OpenAI's own types and rules do. A fault is a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from pydantic import TypeAdapter, ValidationError

Json = dict[str, Any]

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
MEMBERS = {
    "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "response_format", "temperature", "top_p",
    "max_tokens", "max_completion_tokens", "reasoning_effort", "verbosity", "stream", "stream_options",
}  # fmt: skip
"""All that the backend may send."""

_PARAMS: TypeAdapter[Any] = TypeAdapter(CompletionCreateParamsStreaming)


def request_faults(headers: list[tuple[str, str]], body: Any) -> Iterator[str]:
    """Everything that is wrong with a request."""
    once = dict(headers)
    if once.get("content-type", "").partition(";")[0] != "application/json":
        yield "header content-type: not application/json"
    if once.get("accept") != "text/event-stream":
        yield "header accept: not text/event-stream"
    if isinstance(body, dict):
        yield from body_faults(body)
    else:
        yield "body: not a JSON object"


def body_faults(body: Json) -> Iterator[str]:
    """Everything that is wrong with a body, Gemini's `extra_content` aside."""
    body = without_extras(body)
    if unknown := sorted(body.keys() - MEMBERS):
        yield f"body: unexpected {', '.join(unknown)}"
    try:
        # Lists are checked when they are gone through; members that the types do not know are lost.
        if _gone_through(_PARAMS.validate_python(body, strict=True)) != body:
            yield "body: members that the official types do not have"
    except ValidationError as error:
        yield f"body: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}"
        return
    if body.get("stream") is not True or body.get("stream_options") != {"include_usage": True}:
        yield "body: not streamed with usage"
    if not body["messages"]:
        yield "messages: empty"
    yield from _message_faults(body["messages"])
    yield from _tool_faults(body)


def without_extras(body: Json) -> Json:
    """The body without the signatures that only Gemini knows."""
    return _map_calls(body, lambda call: {name: value for name, value in call.items() if name != "extra_content"})


def _map_calls(body: Json, change: Any) -> Json:
    messages = body.get("messages")
    if not isinstance(messages, list):
        return body
    changed = [
        message | {"tool_calls": [change(call) for call in message["tool_calls"]]}
        if isinstance(message.get("tool_calls"), list)
        else message
        for message in messages
    ]
    return body | {"messages": changed}


def _message_faults(messages: list[Json]) -> Iterator[str]:
    """The rule of OpenAI: the outputs of an answer's calls follow it at once."""
    open_ids: list[str] = []
    for number, message in enumerate(messages):
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_ids:
                yield f"messages[{number}]: a tool message that follows no call"
            else:
                open_ids.remove(message["tool_call_id"])
            if not isinstance(message["content"], str):
                yield f"messages[{number}]: a tool message with more than text"
            continue
        if message["role"] not in ("system", "user", "assistant"):
            yield f"messages[{number}]: role {message['role']}"
        calls = message.get("tool_calls") or []
        open_ids = [call["id"] for call in calls]
        if any(not NAME.fullmatch(call["function"]["name"]) for call in calls):
            yield f"messages[{number}]: a name that is not legal"
        if message["role"] == "assistant" and not calls and message.get("content") is None:
            yield f"messages[{number}]: an assistant message with neither text nor calls"


def _tool_faults(body: Json) -> Iterator[str]:
    tools = body.get("tools")
    names = [tool["function"]["name"] for tool in tools or ()]
    if tools == []:
        yield "tools: empty"
    if len(set(names)) != len(names):
        yield "tools: a name twice"
    for name in names:
        if not NAME.fullmatch(name):
            yield f"tools: {name} is not legal"
    choice = body.get("tool_choice")
    if not names and (choice is not None or "parallel_tool_calls" in body):
        yield "tool_choice: without tools"
    if isinstance(choice, dict) and choice["function"]["name"] not in names:
        yield "tool_choice: not among the tools"


def _gone_through(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _gone_through(each) for name, each in value.items()}
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        return value
    return [_gone_through(each) for each in value]
