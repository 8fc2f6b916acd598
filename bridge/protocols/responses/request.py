"""POST /v1/responses: the request's body becomes a Turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from bridge.core.items import Item, Message, Text
from bridge.core.turn import Turn
from bridge.errors import InvalidRequest
from bridge.protocols.items import read_items
from bridge.protocols.reading import ENCRYPTED, Body, Effort, StreamOptions, invalid, read_tier, validate
from bridge.protocols.tooling import read_format, read_offer


class Reasoning(Body):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class TextOptions(Body):
    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


NO_REASONING, NO_TEXT_OPTIONS = Reasoning(), TextOptions()


class ResponsesBody(Body):
    """The fields that are read; others are echoed or ignored."""

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
    metadata: dict[str, str] | None = Field(None, max_length=16)
    include: list[str] | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    prompt: Any = None
    service_tier: str | None = None


def parse_responses(data: dict[str, Any], context: Sequence[dict[str, Any]] = ()) -> Turn:
    """The Turn of a request; `context` has the items of the response that it continues. Raises InvalidRequest."""
    body = validate(ResponsesBody, data)
    if body.prompt is not None:
        raise InvalidRequest(
            "'prompt' is not supported: prompt templates are kept by OpenAI. Send the text itself.",
            param="prompt",
            code="unsupported_parameter",
        )
    items = read_input(body.input, context)
    offer = read_offer(body.tools, body.tool_choice, body.input, context)
    reasoning = body.reasoning or NO_REASONING
    text = body.text or NO_TEXT_OPTIONS
    return Turn(
        model=body.model,
        requested_model=body.model,
        items=items,
        instructions=body.instructions or None,
        tools=offer.tools,
        tool_choice=offer.choice,
        effort=reasoning.effort,
        summary=reasoning.summary or reasoning.generate_summary,
        output_format=read_format(text.format, "text.format"),
        stream=body.stream,
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        temperature=body.temperature,
        top_p=body.top_p,
        max_output_tokens=body.max_output_tokens,
        parallel=body.parallel_tool_calls is not False,
        verbosity=text.verbosity,
        web_search=offer.search,
        service_tier=read_tier(body.service_tier),
        encrypted_reasoning=ENCRYPTED in (body.include or ()),
    )


def read_input(value: Any, context: Sequence[dict[str, Any]] = ()) -> tuple[Item, ...]:
    """`input`: a string is one user message. Raises InvalidRequest when there is nothing to answer."""
    before = read_items(context, "previous")
    if isinstance(value, str) and value:
        return (*before, Message("user", (Text(value),)))
    if not isinstance(value, list | str | None):
        raise invalid("input", "expected a string or a list of items")
    items = read_items(value or (), "input", before)
    if not items:
        raise InvalidRequest("'input' is empty: send a text or a list of items.", param="input")
    return items
