"""What is wrong with a request to the Messages API: by Anthropic's own types, and by what it answers 400 to. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from anthropic.types.beta.message_create_params import MessageCreateParamsStreaming as BetaParams
from anthropic.types.message_create_params import MessageCreateParamsStreaming as Params
from pydantic import TypeAdapter, ValidationError

Json = dict[str, Any]

PATH = "/v1/messages"
OAUTH_BETA = "oauth-2025-04-20"
BINDING_BETA = "thinking-binding-controls-2026-08-01"

_params: TypeAdapter[Any] = TypeAdapter(Params)
_beta_params: TypeAdapter[Any] = TypeAdapter(BetaParams)
_SAMPLING = ("temperature", "top_p")
_LEGAL = re.compile(r"[a-zA-Z0-9_-]+")

_ALL_EFFORTS = ("low", "medium", "high", "xhigh", "max")
REFUSED: dict[str, Json] = {
    "claude-3-5-haiku-latest": {"thinking": ("enabled", "adaptive", "between_tools"), "efforts": ()},
    "claude-sonnet-4-5": {"thinking": ("adaptive", "between_tools"), "efforts": ()},
    "claude-haiku-4-5-20251001": {"thinking": ("adaptive", "between_tools"), "efforts": ()},
    "claude-opus-4-6": {"thinking": ("between_tools",), "efforts": ("low", "medium", "high", "max")},
    "claude-opus-4-7": {"thinking": ("enabled", "between_tools"), "sampling": True},
    "claude-opus-5": {"thinking": ("enabled", "between_tools"), "sampling": True},
    "claude-haiku-5-5": {"thinking": ("enabled", "between_tools"), "sampling": True, "binds": True},
    "claude-sonnet-5-5": {"thinking": ("enabled", "disabled"), "sampling": True, "forced": True, "binds": True},
    "claude-opus-5-5": {
        "thinking": ("enabled", "disabled", "between_tools"),
        "sampling": True,
        "forced": True,
        "binds": True,
    },
    "claude-fable-5": {"thinking": ("enabled", "disabled", "between_tools"), "sampling": True},
}
"""What each model refuses: kinds of thinking, efforts but these, a temperature, a forced call."""


def header_faults(headers: list[tuple[str, str]], body: Any) -> Iterator[str]:
    """What is wrong with the headers of a request."""
    got: dict[str, list[str]] = {}
    for name, value in headers:
        got.setdefault(name, []).append(value)
    wanted = {"anthropic-version": "2023-06-01", "content-type": "application/json", "accept": "text/event-stream"}
    for name, value in wanted.items():
        if got.get(name) != [value]:
            yield f"header {name}: {got.get(name)}"
    if ("x-api-key" in got) == ("authorization" in got):
        yield "headers x-api-key and authorization: not one of them"
    betas = [beta for line in got.get("anthropic-beta", []) for beta in line.split(",")]
    if (OAUTH_BETA in betas) != ("authorization" in got):
        yield f"header anthropic-beta: {betas} for this way in"
    thinking = body.get("thinking") if isinstance(body, dict) else None
    if (BINDING_BETA in betas) != ("block_binding" in (thinking or {})):
        yield f"header anthropic-beta: {betas} for this body"
    if not got.get("user-agent", [""])[0].startswith("turnbridge/"):
        yield "header user-agent: not ours"


def body_faults(body: Any) -> Iterator[str]:
    """What is wrong with a body."""
    if not isinstance(body, dict):
        yield "body: not a JSON object"
        return
    yield from _type_faults(body)
    yield from _message_faults(body)
    yield from _tool_faults(body)
    yield from _thinking_faults(body)
    if sum(1 for _ in _marks(body)) > 4:
        yield "cache_control: more than four"


def _type_faults(body: Json) -> Iterator[str]:
    # What only older models take is in the types no more, and those of betas know but three members of a schema.
    typed = {name: value for name, value in body.items() if name not in _SAMPLING}
    if "tools" in typed:
        plain = {"input_schema": {"type": "object"}}
        typed["tools"] = [tool | plain if "input_schema" in tool else tool for tool in typed["tools"]]
    params = _beta_params if "block_binding" in body.get("thinking", {}) else _params
    try:
        read = _all(params.validate_python(typed))
    except ValidationError as error:
        yield f"body: {error.errors()[0]}"
        return
    if read != typed:
        yield f"body: members that nobody knows, in {typed}"


def _all(value: Any) -> Any:
    """A validated value, to its ends: lists are validated as they are read, and unknown members are gone."""
    if isinstance(value, dict):
        return {name: _all(member) for name, member in value.items()}
    if value is None or isinstance(value, str | int | float):
        return value
    return [_all(member) for member in value]


def _message_faults(body: Json) -> Iterator[str]:
    messages = body["messages"]
    roles = [message["role"] for message in messages]
    if not roles or roles != ["user", "assistant"] * (len(roles) // 2) + ["user"]:
        yield f"messages: roles {roles}"
    seen: set[str] = set()
    for place, message in enumerate(messages):
        blocks = message["content"]
        yield from (f"messages.{place}: {fault}" for fault in _block_faults(message["role"], blocks))
        called = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if len(set(called)) < len(called) or seen & set(called):
            yield f"messages.{place}: `tool_use` ids must be unique"
        seen |= set(called)
        following = messages[place + 1]["content"] if place + 1 < len(messages) else []
        results = [block["tool_use_id"] for block in following if block["type"] == "tool_result"]
        if message["role"] == "assistant" and results != called:
            yield f"messages.{place}: calls {called} and results {results}"
        if any(block["type"] != "tool_result" for block in following[: len(results)]):
            yield f"messages.{place + 1}: results stand after other content"
    if not any(message["role"] == "assistant" for message in messages) and _results(messages):
        yield "messages: results without calls"


def _results(messages: list[Json]) -> list[Json]:
    return [block for message in messages for block in message["content"] if block["type"] == "tool_result"]


def _block_faults(role: str, blocks: list[Json]) -> Iterator[str]:
    if not blocks:
        yield "no content"
    allowed = {
        "user": {"text", "image", "tool_result"},
        "assistant": {"text", "thinking", "redacted_thinking", "tool_use"},
    }[role]
    for block in blocks:
        if block["type"] not in allowed:
            yield f"{block['type']} from the {role}"
        if block["type"] == "text" and not block["text"].strip():
            yield "text content blocks must contain non-whitespace text"
        if block["type"] == "tool_use" and not _LEGAL.fullmatch(block["id"]):
            yield f"tool_use.id: {block['id']!r}"
        if block["type"] == "tool_use" and not (_LEGAL.fullmatch(block["name"]) and len(block["name"]) <= 128):
            yield f"tool_use.name: {block['name']!r}"
    if blocks and blocks[-1]["type"] in ("thinking", "redacted_thinking"):
        yield "the final block in an assistant message cannot be `thinking`"


def _tool_faults(body: Json) -> Iterator[str]:
    tools = body.get("tools", [])
    names = [tool["name"] for tool in tools]
    if len(set(names)) < len(names):
        yield f"tools: names {names}"
    for tool in tools:
        if not (_LEGAL.fullmatch(tool["name"]) and len(tool["name"]) <= 128):
            yield f"tools: name {tool['name']!r}"
        schema = tool.get("input_schema", {"type": "object"})
        if schema.get("type") != "object" or {"anyOf", "oneOf", "allOf"} & set(schema):
            yield f"tools: schema {schema}"
    choice = body.get("tool_choice", {})
    if choice and not tools:
        yield "tool_choice: without tools"
    if choice.get("type") == "tool" and choice["name"] not in names:
        yield f"tool_choice: {choice['name']!r} is no tool"
    if not tools and any(block["type"] == "tool_use" for message in body["messages"] for block in message["content"]):
        yield "tools: calls among the messages need them"
    if choice.get("type") in ("any", "tool") and REFUSED.get(body["model"], {}).get("forced"):
        yield 'tool_choice: type "tool" and "any" are not supported for this model.'


def _thinking_faults(body: Json) -> Iterator[str]:
    thinking, rules = body.get("thinking", {}), REFUSED.get(body["model"], {})
    kind, effort = thinking.get("type"), body.get("output_config", {}).get("effort")
    if kind in rules.get("thinking", ()):
        yield f'"thinking.type.{kind}" is not supported for this model.'
    if effort is not None and effort not in rules.get("efforts", _ALL_EFFORTS):
        yield f"output_config.effort: {effort}"
    if effort in ("xhigh", "max") and kind in ("disabled", "between_tools"):
        yield f"output_config.effort: {effort} without thinking"
    if set(_SAMPLING) & set(body) and (rules.get("sampling") or kind in ("enabled", "adaptive")):
        yield "temperature is deprecated for this model, or not allowed with thinking"
    if set(_SAMPLING) <= set(body):
        yield "temperature and top_p cannot both be specified"
    if not 0 <= body.get("temperature", 0) <= 1:
        yield "temperature: out of range"
    if "block_binding" in thinking and rules and not rules.get("binds"):
        yield "thinking.block_binding: not for this model"
    if kind != "enabled":
        return
    if not 1024 <= thinking["budget_tokens"] < body["max_tokens"]:
        yield f"thinking.budget_tokens: {thinking['budget_tokens']} of {body['max_tokens']}"
    if body.get("tool_choice", {}).get("type") in ("any", "tool"):
        yield "Thinking may not be enabled when tool_choice forces tool use."
    begun = _current_turn(body["messages"])
    if begun and begun[0]["type"] not in ("thinking", "redacted_thinking"):
        yield f"Expected `thinking` or `redacted_thinking`, but found `{begun[0]['type']}`."


def _current_turn(messages: list[Json]) -> list[Json]:
    """The content with which the model began what it goes on with now; nothing when it begins anew."""
    begun: list[Json] = []
    for message in reversed(messages):
        is_result = any(block["type"] == "tool_result" for block in message["content"])
        if message["role"] == "user" and not is_result:
            break
        if message["role"] == "assistant":
            begun = message["content"]
    return begun


def _marks(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        if "cache_control" in value:
            yield value
        for member in value.values():
            yield from _marks(member)
    elif isinstance(value, list):
        for member in value:
            yield from _marks(member)
