"""POST /v1/chat/completions: the request's body becomes a Turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from bridge.core.turn import Turn
from bridge.errors import InvalidRequest
from bridge.protocols.items import read_items
from bridge.protocols.reading import Body, Effort, StreamOptions, invalid, read_tier, validate
from bridge.protocols.tooling import (
    Offer,
    read_format,
    read_offer,
    read_old_function_call,
    read_old_functions,
    read_search,
    speaks_functions,
)

MAX_CHOICES = 16
MAX_STOPS = 16


class ChatBody(Body):
    """The fields that are read; others are ignored, and named in a response header if they matter."""

    model: str = Field(min_length=1, max_length=256)
    messages: list[Any]
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    reasoning_effort: Effort | None = None
    response_format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    web_search_options: dict[str, Any] | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    stop: Any = None
    service_tier: str | None = None


FORM: Mapping[str, Any] = {
    "system_messages_are_prompt": True,
    "legacy_form": "chat",
    "field_names": {
        "reasoning.effort": "reasoning_effort",
        "text.format": "response_format",
        "text.verbosity": "verbosity",
        "tools:web_search": "web_search_options",
    },
}
"""The values that every Turn of this protocol has."""


def parse_chat(data: dict[str, Any], context: Sequence[dict[str, Any]] = ()) -> Turn:
    """The Turn of a request; `context` has the items of the response that it continues. Raises InvalidRequest."""
    body = validate(ChatBody, data)
    if not body.messages:
        raise InvalidRequest("'messages' is empty: send at least one message.", param="messages")
    items = read_items(body.messages, "messages", read_items(context, "previous"))
    if not items:
        raise InvalidRequest("'messages' holds nothing to answer.", param="messages")
    offer = _offer(body)
    return Turn(
        **FORM,
        model=body.model,
        requested_model=body.model,
        items=items,
        tools=offer.tools,
        tool_choice=offer.choice,
        effort=body.reasoning_effort,
        output_format=read_format(body.response_format, "response_format"),
        stream=body.stream,
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        temperature=body.temperature,
        top_p=body.top_p,
        max_output_tokens=body.max_completion_tokens or body.max_tokens,
        n=body.n,
        # Calls of the old form have no ids, so there can be only one at a time.
        parallel=body.parallel_tool_calls is not False and not speaks_functions(data),
        stop=_stops(body.stop),
        verbosity=body.verbosity,
        web_search=offer.search,
        service_tier=read_tier(body.service_tier),
    )


def _offer(body: ChatBody) -> Offer:
    if body.functions and not body.tools:
        functions = read_old_functions(body.functions)
        offer = Offer(functions, read_old_function_call(body.function_call, functions))
    else:
        offer = read_offer(body.tools, body.tool_choice, body.messages)
    if body.web_search_options is not None and offer.choice.mode != "none":
        return replace(offer, search=offer.search or read_search(body.web_search_options))
    return offer


def _stops(stop: Any) -> tuple[str, ...]:
    stops = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(text, str) for text in stops):
        raise invalid("stop", "expected a text or a list of texts")
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"'stop' takes at most {MAX_STOPS} texts.", param="stop")
    return tuple(text for text in stops if text)
