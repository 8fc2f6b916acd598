"""Names in the API, and the tools of a request: functions and their schemas, web search, and the choice among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

from bridge.core.items import FunctionTool, ToolChoice, WebSearchOptions
from bridge.errors import InvalidRequest
from bridge.protocols.items import read_name
from bridge.protocols.reading import Body, read_object, read_string
from bridge.protocols.tooling import MAX_TOOLS

# A protocol buffer in JSON: each name has two spellings, `toolConfig` and `tool_config`.


class Spelled(Body):
    """A message of the API: members in either spelling."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, alias_generator=to_camel, populate_by_name=True)


def member(data: Mapping[str, Any], name: str) -> Any:
    """A member in either spelling; `name` is the one with capitals."""
    if name in data:
        return data[name]
    return data.get("".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name))


SEARCHES = ("googleSearch", "googleSearchRetrieval", "enterpriseWebSearch")


class FunctionCallingConfig(Spelled):
    mode: str | None = None
    allowed_function_names: list[str] | None = None


def read_tools(tools: Sequence[Any]) -> tuple[tuple[FunctionTool, ...], WebSearchOptions | None]:
    """The functions of all tools, and whether the web may be searched. Other tools are left out (`server_tools`)."""
    functions: dict[str, FunctionTool] = {}
    search: WebSearchOptions | None = None
    for index, entry in enumerate(tools):
        place = f"tools[{index}]"
        tool = read_object(entry, place)
        if any(member(tool, name) is not None for name in SEARCHES):
            search = WebSearchOptions()
        declared = member(tool, "functionDeclarations") or []
        if not isinstance(declared, list):
            here = f"{place}.functionDeclarations"
            raise InvalidRequest(f"Invalid {here!r}: expected a list.", param=here)
        for number, each in enumerate(declared):
            function = _read_function(each, f"{place}.functionDeclarations[{number}]")
            if function.name in functions:
                raise InvalidRequest(f"Two tools have the name {function.name!r}.", param="tools")
            functions[function.name] = function
            if len(functions) > MAX_TOOLS:
                raise InvalidRequest(f"Too many tools: the limit is {MAX_TOOLS}.", param="tools")
    return tuple(functions.values()), search


def server_tools(tools: Any) -> list[str]:
    """The tools that only Google's servers could run."""
    entries = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    names = [to_camel(name) for tool in entries for name, value in tool.items() if value is not None]
    return [name for name in names if name not in (*SEARCHES, "functionDeclarations")]


def _read_function(value: Any, place: str) -> FunctionTool:
    data = read_object(value, place)
    name = read_name(data.get("name"), f"{place}.name")
    description = data.get("description")
    if description is not None:
        read_string(description, f"{place}.description")
    schema = member(data, "parametersJsonSchema")
    if schema is None and data.get("parameters") is not None:
        schema = json_schema(read_object(data["parameters"], f"{place}.parameters"))
    if schema is not None:
        read_object(schema, f"{place}.parametersJsonSchema")
    return FunctionTool(name, description or None, schema)


def choose(
    calling: FunctionCallingConfig, functions: tuple[FunctionTool, ...]
) -> tuple[tuple[FunctionTool, ...], ToolChoice]:
    """The functions that may be called, and the choice among them."""
    mode = (calling.mode or "AUTO").upper()
    if mode not in ("AUTO", "ANY", "NONE", "VALIDATED", "MODE_UNSPECIFIED"):
        place = "toolConfig.functionCallingConfig.mode"
        raise InvalidRequest(f"Invalid {place!r}: {mode!r}. Use AUTO, ANY, NONE or VALIDATED.", param=place)
    if mode == "NONE":
        return functions, ToolChoice("none")
    allowed = calling.allowed_function_names
    if allowed and mode != "AUTO":
        known = {tool.name: tool for tool in functions}
        if unknown := [name for name in allowed if name not in known]:
            place = "toolConfig.functionCallingConfig.allowedFunctionNames"
            raise InvalidRequest(f"{place!r} names {unknown[0]!r}, which is not among the tools.", param=place)
        if mode == "ANY" and len(allowed) == 1:
            return functions, ToolChoice("named", allowed[0])
        functions = tuple(tool for tool in functions if tool.name in allowed)
    return functions, ToolChoice("required") if mode == "ANY" and functions else ToolChoice()


_NUMBERS = frozenset(
    {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties", "minimum", "maximum"}
)


def json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of the API as JSON Schema: types in lower case, numbers as numbers, `nullable` as a type.

    Objects with properties have no others: the API's models write none.
    """
    found: dict[str, Any] = {}
    for given, value in schema.items():
        name = given if given.startswith("$") else to_camel(given)
        if name == "type" and isinstance(value, str):
            if value.upper() != "TYPE_UNSPECIFIED":
                found["type"] = value.lower()
        elif name in ("properties", "$defs", "defs") and isinstance(value, dict):
            found[name] = {key: _nested(each) for key, each in value.items()}
        elif name == "anyOf" and isinstance(value, list):
            found[name] = [_nested(each) for each in value]
        elif name in ("items", "additionalProperties"):
            found[name] = _nested(value)
        elif name in _NUMBERS and isinstance(value, str) and value.isdecimal():
            found[name] = int(value)  # 64-bit numbers are strings in protocol buffers
        elif name not in ("propertyOrdering", "nullable"):
            found[name] = value
    if "properties" in found:
        found.setdefault("additionalProperties", False)
    if schema.get("nullable") is True and "type" in found:
        found["type"] = [found["type"], "null"]
        if isinstance(found.get("enum"), list):
            found["enum"] = [*found["enum"], None]
    elif schema.get("nullable") is True and isinstance(found.get("anyOf"), list):
        found["anyOf"] = [*found["anyOf"], {"type": "null"}]
    return found


def _nested(value: Any) -> Any:
    return json_schema(value) if isinstance(value, dict) else value
