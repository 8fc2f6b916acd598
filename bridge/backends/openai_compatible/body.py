"""A Turn as the body of a chat completions request, and what of it has no place there."""

from __future__ import annotations

from typing import Any

from bridge.backends.openai_compatible.messages import build_messages
from bridge.backends.openai_compatible.names import ToolNames, legal_name
from bridge.backends.openai_compatible.presets import Preset
from bridge.turn.items import FunctionTool, OutputFormat
from bridge.turn.turn import Turn

Json = dict[str, Any]


def build_body(turn: Turn, preset: Preset) -> Json:
    """What is sent. Always streamed, with usage; nothing that the turn does not ask for."""
    names = ToolNames(turn.functions)
    body: Json = {"model": turn.model, "messages": build_messages(turn, names, preset), **_tooling(turn, names, preset)}
    if turn.output_format is not None:
        body["response_format"] = _format(turn.output_format, preset)
    if turn.temperature is not None:
        body["temperature"] = turn.temperature
    if turn.top_p is not None:
        body["top_p"] = turn.top_p
    if turn.max_output_tokens is not None:
        body[preset.limit] = turn.max_output_tokens
    if turn.effort in preset.efforts:
        body["reasoning_effort"] = turn.effort
    if turn.verbosity is not None and preset.verbosity:
        body["verbosity"] = turn.verbosity
    if turn.service_tier is not None and preset.service_tier:
        body["service_tier"] = turn.service_tier
    return body | {"stream": True, "stream_options": {"include_usage": True}}


def dropped(turn: Turn, preset: Preset) -> list[str]:
    """What the turn asks for that this server would not understand, as the client calls it."""
    chat = turn.endpoint == "chat"
    names = []
    if turn.effort is not None and turn.effort not in preset.efforts:
        names.append("reasoning_effort" if chat else "reasoning.effort")
    if turn.summary is not None:
        names.append("reasoning.summary")
    if turn.verbosity is not None and not preset.verbosity:
        names.append("verbosity" if chat else "text.verbosity")
    if turn.service_tier is not None and not preset.service_tier:
        names.append("service_tier")
    if turn.web_search is not None:
        names.append("web_search_options" if chat else "tools:web_search")
    if turn.encrypted_reasoning and not preset.signatures:
        names.append("include:reasoning.encrypted_content")
    if preset.tool_choice == "ignored" and turn.functions and turn.tool_choice.mode in ("required", "named"):
        names.append("tool_choice")
    return names


def _tooling(turn: Turn, names: ToolNames, preset: Preset) -> Json:
    choice, tools = turn.tool_choice, names.tools
    if not tools or (choice.mode == "none" and preset.tool_choice == "ignored"):
        return {}
    said: Any = None if choice.mode == "auto" or preset.tool_choice == "ignored" else choice.mode
    if said == "named":
        name = names.of(choice.name or "")
        if preset.tool_choice == "any":
            said = {"type": "function", "function": {"name": name}}
        else:
            # To demand the only one that there is means the same.
            said, tools = "required", {name: tools[name]}
    tooling: Json = {"tools": [_tool(name, tool) for name, tool in tools.items()]}
    if said is not None:
        tooling["tool_choice"] = said
    if not turn.parallel and preset.parallel:
        tooling["parallel_tool_calls"] = False
    return tooling


def _tool(name: str, tool: FunctionTool) -> Json:
    """A function, nested. A custom tool is offered as one that takes its text (see `bridge.tools.freeform`)."""
    function: Json = {"name": name}
    if tool.description is not None:
        function["description"] = tool.description
    given = tool.parameters
    function["parameters"] = {"type": "object", "properties": {}} if given is None or isinstance(given, bool) else given
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _format(wanted: OutputFormat, preset: Preset) -> Json:
    if wanted.schema is None:
        if preset.json_object:
            return {"type": "json_object"}
        return {"type": "json_schema", "json_schema": {"name": "output", "schema": {"type": "object"}}}
    nested = wanted.raw.get("json_schema")
    given = nested if isinstance(nested, dict) else wanted.raw
    name, description = given.get("name"), given.get("description")
    schema: Json = {"name": legal_name(name) if isinstance(name, str) and name else "output", "schema": wanted.schema}
    if isinstance(description, str):
        schema["description"] = description
    if wanted.strict:
        schema["strict"] = True
    return {"type": "json_schema", "json_schema": schema}
