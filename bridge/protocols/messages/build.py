"""A Turn as the body of a Messages request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bridge.core.items import FunctionCall, FunctionTool
from bridge.core.turn import Turn
from bridge.errors import InvalidRequest
from bridge.protocols.messages.history import build_messages, can_resume, split_system, text_block
from bridge.protocols.messages.models import Thinking, plan_thinking, traits_of
from bridge.protocols.responses.build import check_pairs
from bridge.protocols.upstream import ToolNames
from bridge.tools.schema import compact_json

SEARCH = "web_search"
SEARCH_TYPE = "web_search_20250305"
"""The version that every model supports; later ones need to run code."""

MAX_NAME = 128
_UNIONS = ("anyOf", "oneOf", "allOf")
"""Not allowed at the top of a tool's schema."""


def tool_names(turn: Turn) -> ToolNames:
    """The names of a turn's functions."""
    return ToolNames(turn.functions, MAX_NAME, {SEARCH} if turn.web_search is not None else ())


def build_tools(turn: Turn, names: ToolNames) -> list[dict[str, Any]]:
    """The tools in the client's order, then the search. Raises InvalidRequest for parameters that are not an object."""
    tools = [_function(name, tool) for name, tool in names.tools.items()]
    if turn.web_search is not None:
        tools.append(_search(turn))
    if not tools:
        # Calls in the history need definitions of their tools, even if these are not offered again.
        called = dict.fromkeys(names.of(item.full_name) for item in turn.items if isinstance(item, FunctionCall))
        tools = [{"name": name, "input_schema": {"type": "object"}} for name in called]
    return tools


def build_choice(turn: Turn, names: ToolNames) -> dict[str, Any]:
    """`tool_choice`. For a model that cannot be forced to call it is `auto`; see `choice_text`."""
    mode = turn.tool_choice.mode
    if mode == "none" or (not turn.functions and turn.web_search is None):
        return {"type": "none"}
    choice: dict[str, Any] = {"type": "auto"}
    if is_forced(turn) and traits_of(turn.model).forced_choice:
        named = turn.tool_choice.name if mode == "named" else None
        choice = {"type": "any"} if named is None else {"type": "tool", "name": names.of(named)}
    return choice if turn.parallel else {**choice, "disable_parallel_tool_use": True}


def choice_text(turn: Turn, names: ToolNames) -> str:
    """The choice in words, for a model that cannot be forced; otherwise empty."""
    if not is_forced(turn) or traits_of(turn.model).forced_choice:
        return ""
    named = turn.tool_choice.name if turn.tool_choice.mode == "named" else None
    what = "one of the tools" if named is None else f"the tool {names.of(named)}"
    return f"Do not answer in words now: call {what}."


def is_forced(turn: Turn) -> bool:
    """Whether the client wants a call and no answer."""
    return turn.tool_choice.mode in ("required", "named") and bool(turn.functions)


def _function(name: str, tool: FunctionTool) -> dict[str, Any]:
    schema, said = _input_schema(tool)
    description = "\n\n".join(text for text in (tool.description, said) if text and text.strip())
    described = {"description": description} if description else {}
    return {"name": name, **described, "input_schema": schema}


def _input_schema(tool: FunctionTool) -> tuple[dict[str, Any], str]:
    """The schema of an object, and a text with the constraints that it cannot have."""
    parameters = tool.parameters
    if parameters is False:
        return {"type": "object", "properties": {}, "additionalProperties": False}, ""
    if not isinstance(parameters, Mapping):
        return {"type": "object"}, ""
    kind = parameters.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise InvalidRequest(
            f"The parameters of the tool {tool.full_name!r} are not those of an object.",
            param="tools",
            code="invalid_function_parameters",
        )
    schema = {name: value for name, value in parameters.items() if name not in _UNIONS}
    said = ""
    if len(schema) < len(parameters):
        said = f"The input must conform to this JSON Schema:\n{compact_json(parameters)}"
    return {**schema, "type": "object"}, said


def _search(turn: Turn) -> dict[str, Any]:
    tool: dict[str, Any] = {"type": SEARCH_TYPE, "name": SEARCH}
    wanted = turn.web_search
    if wanted is not None and wanted.allowed_domains:
        tool["allowed_domains"] = list(wanted.allowed_domains)
    if wanted is not None and wanted.location:
        tool["user_location"] = {"type": "approximate", **wanted.location}
    return tool


# The form of an answer: enforced if the API can enforce the schema, otherwise requested in the prompt.
#
# The API can enforce a part of JSON Schema: closed objects, lists, unions, constants, references without circles.
# Limits of length and number are not part of it: they are left out there, and the prompt contains the whole schema too.

_JSON = "Answer with one valid JSON object and nothing else: no text around it, no code fence."
_CONFORM = "It must conform to this JSON Schema:"
_STRING_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)
_TYPES = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})
_DEFINITIONS = ("$defs", "definitions")
_NOTES = ("title", "description")
_MAX_DEPTH = 50


class _Unfit(Exception):
    """The schema has a constraint that the API does not support."""


def build_format(turn: Turn) -> tuple[dict[str, Any] | None, str]:
    """`output_config.format`, or None, and the words for the system prompt, or none.

    A schema is enforced if the client requires it (`strict`), or if the API supports all of it.
    """
    wanted = turn.output_format
    if wanted is None:
        return None, ""
    if wanted.schema is None:
        return None, _JSON
    words = f"{_JSON}\n{_CONFORM}\n{compact_json(wanted.schema)}"
    enforced = _enforced(wanted.schema) if traits_of(turn.model).schemas else None
    is_whole = enforced == {name: value for name, value in wanted.schema.items() if name != "$schema"}
    if enforced is None or not (is_whole or wanted.strict):
        return None, words
    return {"type": "json_schema", "schema": enforced}, "" if is_whole else words


def _enforced(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The part of a schema that can be enforced; None if it has no meaning without the rest."""
    try:
        fitted = _fit(schema, 0)
        _check_references(fitted)
    except _Unfit:
        return None
    return fitted


def _fit(schema: Any, depth: int) -> dict[str, Any]:
    """The part of a schema that can be enforced: it allows all that the schema allows, but for surplus members."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        raise _Unfit
    kept: dict[str, Any] = {name: schema[name] for name in _NOTES if isinstance(schema.get(name), str)}
    for name in _DEFINITIONS:
        if isinstance(schema.get(name), Mapping):
            kept[name] = {key: _fit(value, depth + 1) for key, value in schema[name].items()}
    if isinstance(schema.get("$ref"), str):
        return {**kept, "$ref": schema["$ref"]}
    kind = schema.get("type")
    for name in ("enum", "const"):
        if name in schema:
            typed = {"type": kind} if isinstance(kind, str) else {}
            return {**kept, **typed, name: _plain(schema[name], many=name == "enum")}
    union = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(union, list) and union:
        return {**kept, "anyOf": [_fit(each, depth + 1) for each in union]}
    if isinstance(kind, list) and kind:
        each = {name: value for name, value in schema.items() if name not in (*_NOTES, *_DEFINITIONS)}
        kinds = dict.fromkeys(str(one) for one in kind)
        return {**kept, "anyOf": [_fit({**each, "type": one}, depth + 1) for one in kinds]}
    if not isinstance(kind, str) or kind not in _TYPES or "allOf" in schema:
        raise _Unfit
    return {**kept, "type": kind, **_members(kind, schema, depth)}


def _members(kind: str, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
    if kind == "object":
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            raise _Unfit
        if schema.get("additionalProperties", False) is not False or "patternProperties" in schema:
            raise _Unfit
        fitted = {name: _fit(value, depth + 1) for name, value in properties.items()}
        return {
            "properties": fitted,
            **({"required": required} if "required" in schema else {}),
            "additionalProperties": False,
        }
    if kind == "array":
        if "prefixItems" in schema:
            raise _Unfit
        least = {"minItems": schema["minItems"]} if schema.get("minItems") in (0, 1) else {}
        return {"items": _fit(schema.get("items"), depth + 1), **least}
    if kind == "string" and str(schema.get("format")) in _STRING_FORMATS:
        return {"format": schema["format"]}
    return {}


def _plain(value: Any, *, many: bool) -> Any:
    values = value if many else [value]
    if not isinstance(values, list) or not values:
        raise _Unfit
    if not all(each is None or isinstance(each, str | int | float) for each in values):
        raise _Unfit
    return value


def _check_references(schema: Mapping[str, Any]) -> None:
    """Every reference leads to a definition at the top, and none leads back to itself."""
    targets = {f"#/{name}/{key}": value for name in _DEFINITIONS for key, value in schema.get(name, {}).items()}
    links = {target: _references(value) for target, value in targets.items()}
    links[""] = _references(schema)
    if not all(reference in targets for found in links.values() for reference in found):
        raise _Unfit
    # Remove definitions without references, then those that refer only to removed ones. A circle remains.
    while done := [target for target, found in links.items() if not found]:
        for target in done:
            del links[target]
        for found in links.values():
            found.difference_update(done)
    if links:
        raise _Unfit


def _references(value: Any) -> set[str]:
    """The references in a schema, wherever they stand."""
    found: set[str] = set()
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, Mapping):
            reference = node.get("$ref")
            if isinstance(reference, str):
                found.add(reference)
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)
    return found


CACHED = {"type": "ephemeral"}
CACHED_MESSAGES = 2
"""The number of the user's last messages that end a cached part: the new one, and the one before."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """The parts of a body."""

    names: ToolNames
    system: list[str]
    messages: list[dict[str, Any]]
    max_tokens: int
    thinking: Thinking


def build_body(turn: Turn) -> dict[str, Any]:
    """What is sent. Raises InvalidRequest for an output without its call, and for what cannot be given at all."""
    check_pairs(turn.items)
    plan = _plan(turn)
    enforced, words = build_format(turn)
    system = [text_block(text) for text in (turn.instructions or "", *plan.system, words) if text.strip()]
    tools = build_tools(turn, plan.names)
    _mark_cached(tools, system, plan.messages)
    if said := choice_text(turn, plan.names):
        # After the cached part: the next request does not have it.
        plan.messages[-1]["content"].append(text_block(said))
    output = {"effort": plan.thinking.effort, "format": enforced}
    config = {name: value for name, value in output.items() if value is not None}
    return {
        "model": turn.model,
        "max_tokens": plan.max_tokens,
        **({"system": system} if system else {}),
        "messages": plan.messages,
        **({"tools": tools, "tool_choice": build_choice(turn, plan.names)} if tools else {}),
        **({"thinking": plan.thinking.config} if plan.thinking.config is not None else {}),
        **({"output_config": config} if config else {}),
        **_sampling(turn, plan.thinking),
        "stream": True,
    }


def dropped(turn: Turn) -> list[str]:
    """The options of a turn that the model does not support."""
    thinking = _plan(turn).thinking
    sent = _sampling(turn, thinking)
    is_dropped = {
        "reasoning.effort": thinking.lost,
        "temperature": turn.temperature not in (None, 1, sent.get("temperature")),
        "top_p": turn.top_p not in (None, 1, sent.get("top_p")),
        "tool_choice": bool(choice_text(turn, tool_names(turn))),
        "text.verbosity": turn.verbosity is not None,
        "service_tier": turn.service_tier is not None,
        "search_context_size": turn.web_search is not None and turn.web_search.context_size is not None,
    }
    return [name for name, dropped in is_dropped.items() if dropped]


def _plan(turn: Turn) -> _Plan:
    names = tool_names(turn)
    system, items = split_system(turn.items)
    max_tokens = turn.max_output_tokens or traits_of(turn.model).max_tokens
    messages = build_messages(items, names, model=turn.model, thinking=True)
    thinking = plan_thinking(turn, max_tokens, can_resume=can_resume(messages))
    if not thinking.on:
        messages = build_messages(items, names, model=turn.model, thinking=False)
    return _Plan(names, system, messages, max_tokens, thinking)


def _sampling(turn: Turn, thinking: Thinking) -> dict[str, float]:
    """Temperature or top_p: with thinking the API accepts neither, and it never accepts both."""
    if thinking.on or not traits_of(turn.model).sampling:
        return {}
    if turn.temperature is not None:
        return {"temperature": min(turn.temperature, 1.0)}
    return {} if turn.top_p is None else {"top_p": turn.top_p}


def _mark_cached(tools: list[dict[str, Any]], system: list[dict[str, Any]], messages: list[dict[str, Any]]) -> None:
    """Mark the ends of the parts that the next request will share with this one. Four marks are allowed."""
    users = [message["content"] for message in messages if message["role"] == "user"]
    for blocks in (tools, system, *users[-CACHED_MESSAGES:]):
        if blocks:
            blocks[-1] = {**blocks[-1], "cache_control": CACHED}
