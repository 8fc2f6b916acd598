"""The tools in a request, the choice among them, and the output format, in the form of either OpenAI protocol."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from bridge.core.items import FunctionTool, OutputFormat, RawTool, Tool, ToolChoice, WebSearchOptions
from bridge.errors import InvalidRequest
from bridge.protocols.items import TOOLS_ITEM, read_name
from bridge.protocols.reading import invalid, read_list, read_object, read_string
from bridge.tools.payload import function_of

MAX_TOOLS = 512
SEARCHES = ("web_search", "web_search_preview")
SEARCH_MEMBERS = ("type", "external_web_access", "filters", "user_location", "search_context_size")
SEARCH_FILTERS = ("allowed_domains",)
"""The members of a web search tool, and of its filters, that are read."""
_LOCATION = ("city", "region", "country", "timezone")


@dataclass(frozen=True, slots=True)
class Offer:
    """The tools of a request that its choice allows, the choice, and whether the provider may search the web."""

    tools: tuple[Tool, ...]
    choice: ToolChoice
    search: WebSearchOptions | None = None


def read_offer(tools: Sequence[Any] | None, choice: Any, items: Any, context: Sequence[dict[str, Any]] = ()) -> Offer:
    """The offer of a request, with the tools among its `items` and among the items that it continues."""
    own = [tool for item in tool_items(items) for tool in _tools_of(item)]
    offered = _add_earlier(read_tools([*(tools or ()), *own]), tool_items(list(context)))
    chosen, left = read_tool_choice(choice, offered)
    searches = [] if chosen.mode == "none" else search_tools(left)
    return Offer(left, chosen, read_search(searches[0].data) if searches else None)


def tool_items(items: Any) -> list[dict[str, Any]]:
    """Those of the `input` that offer tools."""
    entries = items if isinstance(items, list) else ()
    return [item for item in entries if isinstance(item, dict) and item.get("type") == TOOLS_ITEM]


def _tools_of(item: dict[str, Any]) -> list[Any]:
    tools = item.get("tools")
    return tools if isinstance(tools, list) else []


def _add_earlier(tools: tuple[Tool, ...], items: list[dict[str, Any]]) -> tuple[Tool, ...]:
    """The tools and those of earlier requests; of two with the same name the newer one.

    A client that sends only new items offers such tools once. Without them the model could make only one round of
    calls. They come last, as in the request that offered them: the provider's cache needs the same beginning.
    """
    for item in reversed(items):
        names = {tool.full_name for tool in tools if isinstance(tool, FunctionTool)}
        earlier = read_tools(_tools_of(item), "previous")
        new = [t for t in earlier if (t.full_name not in names if isinstance(t, FunctionTool) else t not in tools)]
        tools = (*tools, *new)
    _check_number(len(tools), "tools")
    return tools


def search_tools(tools: Iterable[Tool]) -> list[RawTool]:
    """Those of the tools that let the provider search the web."""
    return [tool for tool in tools if isinstance(tool, RawTool) and tool.type.startswith(SEARCHES)]


def read_search(data: Mapping[str, Any]) -> WebSearchOptions:
    """A web search tool, or chat's `web_search_options`, which nest the location once more."""
    filters, place, size = data.get("filters"), data.get("user_location"), data.get("search_context_size")
    domains = filters.get("allowed_domains") if isinstance(filters, dict) else None
    nested = place.get("approximate") if isinstance(place, dict) else None
    place = nested if isinstance(nested, dict) else place
    known = {name: place.get(name) for name in _LOCATION} if isinstance(place, dict) else {}
    return WebSearchOptions(
        "cached" if data.get("external_web_access") is False else "live",
        tuple(domain for domain in domains if isinstance(domain, str)) if isinstance(domains, list) else (),
        size if isinstance(size, str) else None,
        {name: value for name, value in known.items() if isinstance(value, str) and value},
    )


def read_tools(tools: Sequence[Any], place: str = "tools") -> tuple[Tool, ...]:
    """The tools: functions nested (chat) or flat (responses), custom tools, namespaces; other types verbatim."""
    result: list[Tool] = []
    names: set[str] = set()
    for tool in _flatten(tools, place):
        if isinstance(tool, FunctionTool):
            if tool.full_name in names:
                raise InvalidRequest(f"Two tools have the name {tool.full_name!r}.", param=place)
            names.add(tool.full_name)
        result.append(tool)
        _check_number(len(result), place)
    return tuple(result)


def _check_number(number: int, place: str) -> None:
    if number > MAX_TOOLS:
        raise InvalidRequest(f"Too many tools: the limit is {MAX_TOOLS}.", param=place.partition("[")[0])


def _flatten(tools: Sequence[Any], place: str, namespace: str | None = None) -> Iterator[Tool]:
    """One after the other, so that no more are read than the limit allows. An empty namespace counts, too."""
    _check_number(len(tools), place)
    for index, entry in enumerate(tools):
        here = f"{place}[{index}]"
        data = read_object(entry, here)
        kind = data.get("type", "function")
        if kind in ("function", "custom"):
            nested = data.get(kind)
            inner, where = (nested, f"{here}.{kind}") if isinstance(nested, dict) else (data, here)
            if kind == "function":
                yield _read_function(inner, where, namespace)
            else:
                yield function_of(inner, read_name(inner.get("name"), f"{where}.name"), namespace)
        elif kind == "namespace" and namespace is None:
            name = read_name(data.get("name"), f"{here}.name")
            yield from _flatten(read_list(data.get("tools") or [], f"{here}.tools"), f"{here}.tools", name)
        else:
            yield RawTool(read_string(kind, f"{here}.type"), data)


def speaks_functions(data: dict[str, Any]) -> bool:
    """Whether the client uses the old `functions` instead of tools, and expects `function_call` in the answer."""
    return bool(data.get("functions")) and not data.get("tools")


def read_old_functions(functions: Sequence[Any]) -> tuple[Tool, ...]:
    """The old `functions`."""
    tools = [entry | {"type": "function"} if isinstance(entry, dict) else entry for entry in functions]
    return read_tools(tools, "functions")


def _read_function(data: Mapping[str, Any], place: str, namespace: str | None) -> FunctionTool:
    name = read_name(data.get("name"), f"{place}.name")
    description, parameters, strict = data.get("description"), data.get("parameters"), data.get("strict")
    if description is not None:
        read_string(description, f"{place}.description")
    if parameters is not None and not isinstance(parameters, dict | bool):
        raise invalid(f"{place}.parameters", "expected a JSON Schema")
    if strict is not None and not isinstance(strict, bool):
        raise invalid(f"{place}.strict", "expected a boolean")
    return FunctionTool(name, description, parameters, strict, namespace)


def read_tool_choice(choice: Any, tools: tuple[Tool, ...]) -> tuple[ToolChoice, tuple[Tool, ...]]:
    """`tool_choice` in any form: the choice, and the tools that it allows.

    A word; an object that names a function or custom tool (nested or flat); or `allowed_tools` (nested or flat), which
    leaves only the tools that it lists.
    """
    if choice is None:
        return ToolChoice(), tools
    if choice in ("auto", "none", "required"):
        return ToolChoice(cast(Any, choice)), tools
    data = read_object(choice, "tool_choice")
    kind = data.get("type")
    if kind == "allowed_tools":
        allowed = data.get("allowed_tools")
        return _read_allowed(allowed if isinstance(allowed, dict) else data, tools)
    if kind in ("function", "custom"):
        return ToolChoice("named", _named(data, tools).full_name), tools
    if isinstance(kind, str) and kind.startswith(SEARCHES):
        # The provider decides whether to search; it cannot be forced.
        return ToolChoice(), tools
    why = f"{kind!r} is not supported; use auto, none, required, allowed_tools or a function"
    raise invalid("tool_choice", why)


def read_old_function_call(choice: Any, tools: tuple[Tool, ...]) -> ToolChoice:
    """`function_call`: the old form of `tool_choice`."""
    if isinstance(choice, dict):
        return ToolChoice("named", _named(choice, tools, "function_call").full_name)
    if choice not in (None, "auto", "none", "required"):
        raise invalid("function_call", "use auto, none or an object with a name")
    return ToolChoice(cast(Any, choice or "auto"))


def _read_allowed(data: Mapping[str, Any], tools: tuple[Tool, ...]) -> tuple[ToolChoice, tuple[Tool, ...]]:
    mode, entries = data.get("mode", "auto"), data.get("tools")
    if mode not in ("auto", "required") or not isinstance(entries, list):
        raise invalid("tool_choice", "allowed_tools has a mode (auto or required) and a list of tools")
    kept = [entry for entry in entries if isinstance(entry, dict)]
    names = {_named(entry, tools).full_name for entry in kept if entry.get("type") in ("function", "custom")}
    kinds = [entry.get("type") for entry in kept]
    left = tuple(
        tool for tool in tools if (tool.full_name in names if isinstance(tool, FunctionTool) else tool.type in kinds)
    )
    return ToolChoice(cast(Any, mode)), left


def _named(data: Mapping[str, Any], tools: Iterable[Tool], place: str = "tool_choice") -> FunctionTool:
    nested = data.get("function") or data.get("custom")
    name = read_string(nested.get("name") if isinstance(nested, dict) else data.get("name"), f"{place}.name")
    functions = [tool for tool in tools if isinstance(tool, FunctionTool)]
    # A full name wins over a name within a namespace.
    for known in ({tool.full_name: tool for tool in functions}, {tool.name: tool for tool in functions}):
        if name in known:
            return known[name]
    raise InvalidRequest(f"{place!r} names {name!r}, which is not among the tools.", param=place)


def read_format(data: Mapping[str, Any] | None, place: str) -> OutputFormat | None:
    """`response_format` (schema nested) or `text.format` (schema flat); None for plain text."""
    if data is None or data.get("type") in (None, "text"):
        return None
    kind = data["type"]
    if kind == "json_object":
        return OutputFormat("json_object", data)
    if kind != "json_schema":
        raise invalid(f"{place}.type", repr(kind))
    nested = data.get("json_schema")
    inner = nested if isinstance(nested, dict) else data
    schema = read_object(inner.get("schema"), f"{place}.schema")
    return OutputFormat("json_schema", data, schema, inner.get("strict") is True)
