"""A Turn as the body of a Responses request (seed 001)."""

from __future__ import annotations

from typing import Any

from bridge.errors import InvalidRequest
from bridge.turn.items import (
    FunctionCall,
    FunctionOutput,
    FunctionTool,
    Image,
    Item,
    Message,
    OutputFormat,
    Part,
    RawItem,
    Text,
    Tool,
    ToolChoice,
)
from bridge.turn.thoughts import own_items
from bridge.turn.turn import CODEX_TIERS, Turn


def build_body(turn: Turn, session: str) -> dict[str, Any]:
    """What is sent upstream. It is never stored there, always streamed, and never refers to an earlier response."""
    body: dict[str, Any] = {
        "model": turn.model,
        "instructions": turn.instructions or "",
        "input": [item_object(item) for item in own_items(turn) if not _is_silence(item)],
        "tools": [tool_object(tool) for tool in turn.tools],
        "tool_choice": choice_object(turn.tool_choice, turn.tools),
        "parallel_tool_calls": turn.parallel,
        "reasoning": {"effort": turn.effort or "medium", "summary": turn.summary or "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": session,
    }
    if turn.service_tier in CODEX_TIERS:
        body["service_tier"] = CODEX_TIERS[turn.service_tier]
    return body | {"text": _text(turn)}


def build_plain(body: dict[str, Any], turn: Turn) -> dict[str, Any]:
    """The same for a server that is not Codex's: without its defaults, with what a client may ask of others."""
    plain = dict(body)
    if turn.effort is None and turn.summary is None:
        del plain["reasoning"]
    else:
        asked = {"effort": turn.effort, "summary": turn.summary}
        plain["reasoning"] = {name: value for name, value in asked.items() if value is not None}
    if turn.verbosity is None:
        plain["text"] = {name: value for name, value in body["text"].items() if name != "verbosity"}
    if not plain["text"]:
        del plain["text"]
    if not turn.encrypted_reasoning:
        del plain["include"]
    if not turn.tools:
        for name in ("tools", "tool_choice", "parallel_tool_calls"):
            del plain[name]
    for name in ("temperature", "top_p", "max_output_tokens", "service_tier"):
        if getattr(turn, name) is not None:
            plain[name] = getattr(turn, name)
    return plain


def check_pairs(items: tuple[Item, ...]) -> None:
    """The backend answers 400 to an output without its call; say so before anything is sent."""
    called = {_call_id(item) for item in items if _is(item, "_call")}
    for item in items:
        if _is(item, "_call_output") and _call_id(item) not in called:
            raise InvalidRequest(
                f"No tool call found for the output with call_id {_call_id(item)!r}. "
                "Send the call and its output together.",
                param="input",
                code="missing_function_call",
            )


def _is(item: Item, ending: str) -> bool:
    if isinstance(item, RawItem):
        return item.type in (f"function{ending}", f"custom_tool{ending}")
    return isinstance(item, FunctionCall if ending == "_call" else FunctionOutput)


def _call_id(item: Item) -> str | None:
    call_id = item.data.get("call_id") if isinstance(item, RawItem) else getattr(item, "call_id", None)
    return call_id if isinstance(call_id, str) else None


def _is_silence(item: Item) -> bool:
    """An assistant's message without a word, as chat clients write beside its calls."""
    return isinstance(item, Message) and item.role == "assistant" and not item.text


def item_object(item: Item) -> dict[str, Any]:
    """One item of the input; what came verbatim goes verbatim."""
    if isinstance(item, RawItem):
        return dict(item.data)
    if isinstance(item, Message):
        kind = "output_text" if item.role == "assistant" else "input_text"
        role = "developer" if item.role == "system" else item.role
        return {"type": "message", "role": role, "content": [_part(part, kind) for part in item.parts]}
    if isinstance(item, FunctionCall):
        kind, member = ("custom_tool_call", "input") if item.custom else ("function_call", "arguments")
        return {"type": kind, "name": offered_name(item), member: item.arguments, "call_id": item.call_id}
    plain = all(isinstance(part, Text) for part in item.parts)
    return {
        "type": "custom_tool_call_output" if item.custom else "function_call_output",
        "call_id": item.call_id,
        "output": item.text if plain else [_part(part, "input_text") for part in item.parts],
    }


def tool_object(tool: Tool) -> dict[str, Any]:
    """One tool; parameters are passed on untouched."""
    if not isinstance(tool, FunctionTool):
        return dict(tool.data)
    if tool.raw is not None:
        return {"type": "custom", **tool.raw}
    described = {} if tool.description is None else {"description": tool.description}
    return {
        "type": "function",
        "name": offered_name(tool),
        **described,
        "strict": bool(tool.strict),
        "parameters": tool.parameters if tool.parameters is not None else {"type": "object", "properties": {}},
    }


def offered_name(tool: FunctionTool | FunctionCall) -> str:
    """The name that a function has upstream, where there are no namespaces; no dot is allowed in it."""
    return tool.full_name.replace(".", "__") if tool.namespace else tool.name


def choice_object(choice: ToolChoice, tools: tuple[Tool, ...]) -> Any:
    """`tool_choice` as the API has it."""
    if choice.mode != "named":
        return choice.mode
    tool = next((tool for tool in tools if isinstance(tool, FunctionTool) and tool.full_name == choice.name), None)
    kind = "custom" if tool is not None and tool.custom else "function"
    return {"type": kind, "name": offered_name(tool) if tool is not None else choice.name}


def _text(turn: Turn) -> dict[str, Any]:
    text: dict[str, Any] = {"verbosity": turn.verbosity or "medium"}
    if turn.output_format is not None:
        text["format"] = _format(turn.output_format)
    return text


def _format(wanted: OutputFormat) -> dict[str, Any]:
    if wanted.schema is None:
        return {"type": "json_object"}
    nested = wanted.raw.get("json_schema")
    given = nested if isinstance(nested, dict) else wanted.raw
    return {
        "type": "json_schema",
        "name": given.get("name") or "output",
        "strict": wanted.strict,
        "schema": wanted.schema,
    }


def _part(part: Part, kind: str) -> dict[str, Any]:
    if isinstance(part, Image):
        return {"type": "input_image", "image_url": part.url, "detail": part.detail or "auto"}
    return {"type": kind, "text": part.text}
