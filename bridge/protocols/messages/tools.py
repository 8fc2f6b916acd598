"""The tools in a Messages request, and the choice among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.core.items import FunctionTool, ToolChoice, WebSearchOptions
from bridge.errors import InvalidRequest
from bridge.protocols.items import read_name
from bridge.protocols.messages.build import SEARCH
from bridge.protocols.reading import read_object, read_string
from bridge.protocols.tooling import MAX_TOOLS, read_search


@dataclass(frozen=True, slots=True)
class Offer:
    """The client's functions, the choice among them, and whether the provider may search the web."""

    functions: tuple[FunctionTool, ...]
    choice: ToolChoice
    parallel: bool
    search: WebSearchOptions | None


def _schema(required: Sequence[str], **properties: Any) -> Mapping[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


_TEXT, _LINES = {"type": "string"}, {"type": "array", "items": {"type": "integer"}}
_FILE_COMMANDS = {"command": _TEXT, "path": _TEXT, "file_text": _TEXT, "old_str": _TEXT, "new_str": _TEXT}
KNOWN_TOOLS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bash_": (
        "Run a command in a persistent bash session. `restart` starts a new one.",
        _schema((), command=_TEXT, restart={"type": "boolean"}),
    ),
    "text_editor_": (
        "View, create and edit files. `command` is view, create, str_replace or insert. `view_range` is the first and "
        "the last line; `insert` puts `insert_text` after the line `insert_line`.",
        _schema(
            ("command", "path"),
            **_FILE_COMMANDS,
            view_range=_LINES,
            insert_line={"type": "integer"},
            insert_text=_TEXT,
        ),
    ),
    "memory_": (
        "Read and write files below /memories, which outlast the conversation. `command` is view, create, str_replace, "
        "insert, delete or rename.",
        _schema(
            ("command",),
            **_FILE_COMMANDS,
            view_range=_LINES,
            insert_line={"type": "integer"},
            insert_text=_TEXT,
            old_path=_TEXT,
            new_path=_TEXT,
        ),
    ),
}
"""Tools that the client runs although it does not describe them, by the beginning of their type: Claude was trained on
them, and other models need the description."""


def read_offer(tools: Sequence[Any], choice: Mapping[str, Any] | None) -> Offer:
    """`tools` and `tool_choice`. Tools that run on Anthropic's servers are left out (see `server_tools`)."""
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"Too many tools: the limit is {MAX_TOOLS}.", param="tools")
    functions: dict[str, FunctionTool] = {}
    search: WebSearchOptions | None = None
    for index, entry in enumerate(tools):
        place = f"tools[{index}]"
        tool = read_object(entry, place)
        if is_search(tool):
            search = _read_search(tool)
        elif (function := _read_tool(tool, place)) is not None:
            if function.name in functions:
                raise InvalidRequest(f"Two tools have the name {function.name!r}.", param="tools")
            functions[function.name] = function
    chosen = _read_choice({"type": "auto"} if choice is None else choice, functions)
    parallel = choice is None or choice.get("disable_parallel_tool_use") is not True
    return Offer(tuple(functions.values()), chosen, parallel, None if chosen.mode == "none" else search)


def _read_tool(tool: Mapping[str, Any], place: str) -> FunctionTool | None:
    """A function, or None for a tool that the client does not run."""
    kind, strict = tool.get("type"), tool.get("strict")
    if kind in (None, "custom"):
        description, schema = tool.get("description"), read_object(tool.get("input_schema"), f"{place}.input_schema")
        if description is not None:
            read_string(description, f"{place}.description")
    else:
        name = read_string(kind, f"{place}.type")
        known = next((known for begin, known in KNOWN_TOOLS.items() if name.startswith(begin)), None)
        if known is None:
            return None
        description, schema = known[0], dict(known[1])
    name = read_name(tool.get("name"), f"{place}.name")
    return FunctionTool(name, description, schema, strict if isinstance(strict, bool) else None)


def is_search(tool: Mapping[str, Any]) -> bool:
    """Whether a tool is the provider's search of the web."""
    return str(tool.get("type")).startswith(f"{SEARCH}_")


def server_tools(tools: Any) -> list[str]:
    """The types of the tools that only Anthropic's servers could run."""
    entries = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    kinds = [str(tool.get("type") or "custom") for tool in entries if not is_search(tool)]
    return [kind for kind in kinds if kind != "custom" and not kind.startswith(tuple(KNOWN_TOOLS))]


def _read_search(tool: Mapping[str, Any]) -> WebSearchOptions:
    return read_search({"filters": {"allowed_domains": tool.get("allowed_domains")}, **tool})


def _read_choice(choice: Mapping[str, Any], functions: Mapping[str, FunctionTool]) -> ToolChoice:
    kind, name = choice.get("type"), choice.get("name")
    if kind == "auto" or (kind == "tool" and name == SEARCH and name not in functions):
        # The provider decides whether to search; it cannot be forced.
        return ToolChoice()
    if kind == "any":
        return ToolChoice("required")
    if kind == "none":
        return ToolChoice("none")
    if kind != "tool":
        raise InvalidRequest(
            f"Invalid 'tool_choice.type': {kind!r}. Use auto, any, tool or none.", param="tool_choice.type"
        )
    if read_string(name, "tool_choice.name") not in functions:
        raise InvalidRequest(f"'tool_choice' names {name!r}, which is not among the tools.", param="tool_choice.name")
    return ToolChoice("named", name)
