"""The shapes of the Open Responses specification (version 2026-04-24), and a check of what we send against them.

Facts of the specification in a notation of our own. The official client's types (official.py) are lenient where this is
strict: a member that the specification requires must be there, and is null only where it may be.

A shape is a type; None; a set of words; a list of one shape; a tuple of alternatives; an object, as a mapping from its
members, `name?` for one that may be missing; or `Tagged`, an object whose `type` decides. Members that a shape does not
name are allowed: the specification allows them, and OpenAI's API has many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Shape = Any


@dataclass(frozen=True)
class Tagged:
    """An object whose shape depends on its member `type`."""

    shapes: Mapping[str, Shape]
    others: Shape = None
    """The shape of all other types; None: there are no others."""


STATUS = {"in_progress", "completed", "incomplete"}

# Content

URL_CITATION = {"type": str, "url": str, "start_index": int, "end_index": int, "title": str}
LOGPROB = {
    "token": str,
    "logprob": float,
    "bytes": [int],
    "top_logprobs": [{"token": str, "logprob": float, "bytes": [int]}],
}
PART = Tagged(
    {
        "input_text": {"text": str},
        "text": {"text": str},
        "summary_text": {"text": str},
        "reasoning_text": {"text": str},
        "output_text": {"text": str, "annotations": [URL_CITATION], "logprobs?": [LOGPROB]},
        "refusal": {"refusal": str},
        # `original` is OpenAI's.
        "input_image": {"image_url": (str, None), "detail": {"low", "high", "auto", "original"}},
        "input_file": {"filename?": str, "file_url?": str},
    }
)

# Items

CALL_OUTPUT = {"id": str, "call_id": str, "output": ([PART], str), "status": STATUS}
ITEMS = {
    "message": {
        "id": str,
        "status": STATUS,
        "role": {"user", "assistant", "system", "developer"},
        "content": [PART],
        "phase?": {"commentary", "final_answer"},
    },
    "function_call": {"id": str, "call_id": str, "name": str, "arguments": str, "status": STATUS},
    "function_call_output": CALL_OUTPUT,
    "reasoning": {"id": str, "summary": [PART], "content?": [PART], "encrypted_content?": str},
    "compaction": {"id": str, "encrypted_content": str, "created_by?": str},
}
OPENAI_ITEMS = {
    "custom_tool_call": {"id": str, "call_id": str, "name": str, "input": str, "status": STATUS},
    "custom_tool_call_output": CALL_OUTPUT,
    "web_search_call": {"id": str, "status": STATUS, "action": dict},
}
"""Items of OpenAI's API that the specification does not have."""
OUTPUT_ITEM = Tagged({**ITEMS, **OPENAI_ITEMS})

# The response

CHOICE = {"none", "auto", "required"}
FUNCTION_TOOL = {"name": str, "description": (str, None), "parameters": (dict, None), "strict": (bool, None)}
USAGE = {
    "input_tokens": int,
    "output_tokens": int,
    "total_tokens": int,
    "input_tokens_details": {"cached_tokens": int},
    "output_tokens_details": {"reasoning_tokens": int},
}
FORMAT = Tagged(
    {
        "text": {},
        "json_object": {},
        # The specification has null alone for the schema, since the type that it was made from is left out there.
        "json_schema": {"name": str, "description": (str, None), "schema": (dict, None), "strict": bool},
    }
)
RESPONSE = {
    "id": str,
    "object": {"response"},
    "created_at": int,
    "completed_at": (int, None),
    "status": {"queued", "in_progress", "completed", "incomplete", "failed", "cancelled"},
    "incomplete_details": ({"reason": str}, None),
    "model": str,
    "previous_response_id": (str, None),
    "instructions": (str, None),
    "output": [OUTPUT_ITEM],
    "error": ({"code": str, "message": str}, None),
    # The specification has functions alone, for the tools and for the choice; the other types are OpenAI's.
    "tools": [Tagged({"function": FUNCTION_TOOL}, others={})],
    "tool_choice": (
        Tagged({"function": {"name?": str}, "allowed_tools": {"tools": [{"type": str}], "mode": CHOICE}}, others={}),
        CHOICE,
    ),
    "truncation": {"auto", "disabled"},
    "parallel_tool_calls": bool,
    "text": {"format": FORMAT, "verbosity?": {"low", "medium", "high"}},
    "top_p": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "top_logprobs": int,
    "temperature": float,
    "reasoning": (
        {
            # `minimal` is OpenAI's, `max` and `ultra` are Codex's.
            "effort": ({"none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"}, None),
            "summary": ({"concise", "detailed", "auto"}, None),
        },
        None,
    ),
    "usage": (USAGE, None),
    "max_output_tokens": (int, None),
    "max_tool_calls": (int, None),
    "store": bool,
    "background": bool,
    "service_tier": str,
    "metadata": dict,
    "safety_identifier": (str, None),
    "prompt_cache_key": (str, None),
}
COMPACTION = {
    "id": str,
    "object": {"response.compaction"},
    "output": [OUTPUT_ITEM],
    "created_at": int,
    "usage": USAGE,
}

# Events

_OF_ITEM = {"sequence_number": int, "item_id": str, "output_index": int}
_OF_CONTENT = {**_OF_ITEM, "content_index": int}
_OF_SUMMARY = {**_OF_ITEM, "summary_index": int}
_WHOLE_RESPONSE = {"sequence_number": int, "response": RESPONSE}
_WHOLE_ITEM = {"sequence_number": int, "output_index": int, "item": OUTPUT_ITEM}
EVENTS = {
    "response.created": _WHOLE_RESPONSE,
    "response.in_progress": _WHOLE_RESPONSE,
    "response.completed": _WHOLE_RESPONSE,
    "response.incomplete": _WHOLE_RESPONSE,
    "response.failed": _WHOLE_RESPONSE,
    "response.output_item.added": _WHOLE_ITEM,
    "response.output_item.done": _WHOLE_ITEM,
    "response.content_part.added": {**_OF_CONTENT, "part": PART},
    "response.content_part.done": {**_OF_CONTENT, "part": PART},
    "response.output_text.delta": {**_OF_CONTENT, "delta": str, "logprobs?": [LOGPROB]},
    "response.output_text.done": {**_OF_CONTENT, "text": str, "logprobs?": [LOGPROB]},
    "response.reasoning_summary_part.added": {**_OF_SUMMARY, "part": PART},
    "response.reasoning_summary_part.done": {**_OF_SUMMARY, "part": PART},
    "response.reasoning_summary_text.delta": {**_OF_SUMMARY, "delta": str},
    "response.reasoning_summary_text.done": {**_OF_SUMMARY, "text": str},
    "response.function_call_arguments.delta": {**_OF_ITEM, "delta": str},
    "response.function_call_arguments.done": {**_OF_ITEM, "arguments": str},
}
"""The events of the specification that the bridge sends."""
OPENAI_EVENTS = {
    # The specification calls them `response.reasoning.delta` and `.done`. OpenAI's clients know these names alone.
    "response.reasoning_text.delta": {**_OF_CONTENT, "delta": str},
    "response.reasoning_text.done": {**_OF_CONTENT, "text": str},
    "response.custom_tool_call_input.delta": {**_OF_ITEM, "delta": str},
    "response.custom_tool_call_input.done": {**_OF_ITEM, "input": str},
    "response.web_search_call.in_progress": _OF_ITEM,
    "response.web_search_call.searching": _OF_ITEM,
    "response.web_search_call.completed": _OF_ITEM,
}
"""Events of OpenAI's API that the specification does not have."""
EVENT = Tagged({**EVENTS, **OPENAI_EVENTS})
SOCKET_MESSAGE = Tagged(
    {
        **EVENTS,
        **OPENAI_EVENTS,
        "error": {"status": int, "error": {"type?": str, "code": str, "message": str, "param?": (str, None)}},
    }
)


def faults(value: Any, shape: Shape, at: str = "") -> Iterator[str]:
    """Where a value does not have its shape."""
    if isinstance(shape, tuple):
        found = [list(faults(value, alternative, at)) for alternative in shape]
        if all(found):
            # Null and words cannot be nearly right: the first alternative has the most to tell.
            yield from found[0]
    elif isinstance(shape, list):
        if isinstance(value, list):
            for index, entry in enumerate(value):
                yield from faults(entry, shape[0], f"{at}[{index}]")
        else:
            yield f"{at}: {value!r:.80} is not a list"
    elif isinstance(shape, Tagged):
        yield from _tagged_faults(value, shape, at)
    elif isinstance(shape, dict):
        yield from _member_faults(value, shape, at)
    elif not _fits(value, shape):
        yield f"{at}: {value!r:.80} is not {shape}"


def _tagged_faults(value: Any, shape: Tagged, at: str) -> Iterator[str]:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        yield f"{at}: {value!r:.80} is not an object with a type"
    elif kind not in shape.shapes and shape.others is None:
        yield f"{at}.type: {kind!r} is unknown"
    else:
        yield from _member_faults(value, shape.shapes.get(kind, shape.others), at)


def _member_faults(value: Any, members: Mapping[str, Shape], at: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{at}: {value!r:.80} is not an object"
        return
    for name, shape in members.items():
        bare = name.removesuffix("?")
        if bare in value:
            yield from faults(value[bare], shape, f"{at}.{bare}")
        elif bare == name:
            yield f"{at}.{name}: missing"


def _fits(value: Any, shape: Shape) -> bool:
    if isinstance(shape, set):
        return isinstance(value, str) and value in shape
    if shape is None:
        return value is None
    if isinstance(value, bool):
        return shape is bool
    return isinstance(value, (int, float) if shape is float else shape)


def check(value: Any, shape: Shape, name: str = "") -> None:
    """Fail with everything that is wrong."""
    found = list(faults(value, shape, name))
    assert not found, "\n".join(["not as Open Responses has it:", *found])


def check_response(body: Any) -> None:
    """A response object."""
    check(body, RESPONSE, "response")


def check_event(payload: Any) -> None:
    """One event of a stream."""
    check(payload, EVENT, str(payload.get("type")))


def check_message(message: Any) -> None:
    """One message of a WebSocket."""
    check(message, SOCKET_MESSAGE, str(message.get("type")))


def check_body(body: Any) -> None:
    """The body of an answer, where it is a response or a compaction; the specification has no other bodies."""
    kind = body.get("object") if isinstance(body, dict) else None
    if kind == "response" and "deleted" not in body:
        check_response(body)
    elif kind == "response.compaction":
        check(body, COMPACTION, "compaction")
