"""The tools of a turn as the API takes them, and the names that they have there."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from bridge.backends.anthropic.models import traits_of
from bridge.errors import InvalidRequest
from bridge.tools.schema import compact_json
from bridge.turn.items import FunctionCall, FunctionTool
from bridge.turn.turn import Turn

SEARCH = "web_search"
SEARCH_TYPE = "web_search_20250305"
"""The version that every model knows; later ones want to run code."""

_LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
_UNIONS = ("anyOf", "oneOf", "allOf")
"""Not taken at the top of a tool's schema."""


class ToolNames:
    """The names that functions have upstream: their own where those are legal, never the same for two."""

    def __init__(self, turn: Turn) -> None:
        self._offered: dict[str, str] = {}
        self._functions: dict[str, FunctionTool] = {}
        taken = {SEARCH} if turn.web_search is not None else set()
        # Whoever can keep its name does, wherever it stands in the list.
        for tool in sorted(turn.functions, key=lambda tool: not _keeps_name(tool)):
            if tool.full_name in self._offered:
                continue
            name = _legal_name(tool.full_name)
            if name in taken:
                name = f"{name[:119]}_{hashlib.sha256(tool.full_name.encode()).hexdigest()[:8]}"
            taken.add(name)
            self._offered[tool.full_name] = name
            self._functions[name] = tool

    def offered(self, full_name: str) -> str:
        """A function's name upstream; also of one that is not offered any more."""
        return self._offered.get(full_name) or _legal_name(full_name)

    def function(self, name: str) -> FunctionTool | None:
        """The function that is offered under a name."""
        return self._functions.get(name)

    def functions(self) -> Iterable[tuple[str, FunctionTool]]:
        """All that are offered, by their names."""
        return self._functions.items()


def _keeps_name(tool: FunctionTool) -> bool:
    return tool.namespace is None and _LEGAL.fullmatch(tool.name) is not None


def _legal_name(full_name: str) -> str:
    """A dot divides a namespace from a name, and is not allowed."""
    return _ILLEGAL.sub("_", full_name.replace(".", "__"))[:128] or "tool"


def build_tools(turn: Turn, names: ToolNames) -> list[dict[str, Any]]:
    """The tools in the client's order, then the search. Raises InvalidRequest for parameters that are no object."""
    order = {tool.full_name: place for place, tool in reversed(list(enumerate(turn.functions)))}
    offered = sorted(names.functions(), key=lambda entry: order[entry[1].full_name])
    tools = [_function(name, tool) for name, tool in offered]
    if turn.web_search is not None:
        tools.append(_search(turn))
    if not tools:
        # Calls among the messages want their tools defined, whether they may be used again or not.
        called = dict.fromkeys(names.offered(item.full_name) for item in turn.items if isinstance(item, FunctionCall))
        tools = [{"name": name, "input_schema": {"type": "object"}} for name in called]
    return tools


def build_choice(turn: Turn, names: ToolNames) -> dict[str, Any]:
    """`tool_choice`. Who cannot be made to call is left the choice; see `choice_text`."""
    mode = turn.tool_choice.mode
    if mode == "none" or (not turn.functions and turn.web_search is None):
        return {"type": "none"}
    choice: dict[str, Any] = {"type": "auto"}
    if is_forced(turn) and traits_of(turn.model).forced_choice:
        named = turn.tool_choice.name if mode == "named" else None
        choice = {"type": "any"} if named is None else {"type": "tool", "name": names.offered(named)}
    return choice if turn.parallel else {**choice, "disable_parallel_tool_use": True}


def choice_text(turn: Turn, names: ToolNames) -> str:
    """The choice in words, for a model that cannot be forced; empty where it needs none."""
    if not is_forced(turn) or traits_of(turn.model).forced_choice:
        return ""
    named = turn.tool_choice.name if turn.tool_choice.mode == "named" else None
    what = "one of the tools" if named is None else f"the tool {names.offered(named)}"
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
    """The schema of an object, and in words what has no place in it."""
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
