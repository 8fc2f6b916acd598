"""Reading a client's JSON: what both request formats share. Faults name the place, as OpenAI's `param` does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, cast

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from bridge.errors import InvalidRequest
from bridge.turn.items import (
    FunctionCall,
    FunctionOutput,
    FunctionTool,
    Image,
    Item,
    OutputFormat,
    Part,
    RawTool,
    Text,
    Tool,
    ToolChoice,
)

MAX_DEPTH = 64
MAX_TOOLS = 512
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_CALL_ID = re.compile(r"[A-Za-z0-9_.:|/+=@#~$-]{1,256}")

BodyT = TypeVar("BodyT", bound="Body")

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"]


class Body(BaseModel):
    """A client's body: fields we know are checked strictly, unknown ones are kept and ignored."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


def parse_json(body: bytes) -> dict[str, Any]:
    """The JSON object of a request. Raises InvalidRequest for anything else, and for nesting beyond MAX_DEPTH."""
    if not body.strip():
        raise InvalidRequest("The request has no body. Send a JSON object.", code="invalid_json")
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The request body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(data, dict):
        raise InvalidRequest("The request body must be a JSON object.", code="invalid_json")
    check_depth(data)
    return data


def check_depth(data: Any) -> None:
    """Refuse deep nesting, level by level, before anything recursive sees it."""
    level = [data]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for container in level:
            values = container.values() if isinstance(container, dict) else container
            below.extend(value for value in values if isinstance(value, dict | list))
        if not below:
            return
        level = below
    raise InvalidRequest(f"The request body is nested more than {MAX_DEPTH} levels deep.", code="nesting_too_deep")


def validate(model: type[BodyT], data: dict[str, Any]) -> BodyT:
    """`data` as `model`. Raises InvalidRequest for the first fault."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        fault = error.errors()[0]
        place = _place(fault["loc"])
        raise InvalidRequest(f"Invalid {place!r}: {fault['msg']}.", param=place) from None


def _place(loc: Iterable[int | str]) -> str:
    place = ""
    for step in loc:
        place += f"[{step}]" if isinstance(step, int) else f".{step}" if place else step
    return place


# Pieces of both formats


def read_object(value: Any, place: str) -> dict[str, Any]:
    """A JSON object at `place`."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"Invalid {place!r}: expected an object.", param=place)
    return value


def read_string(value: Any, place: str) -> str:
    """A string at `place`."""
    if not isinstance(value, str):
        raise InvalidRequest(f"Invalid {place!r}: expected a string.", param=place)
    return value


def read_parts(content: Any, place: str) -> tuple[Part, ...]:
    """Message content: a string, null, or a list of text and image parts in either format's spelling."""
    if content is None:
        return ()
    if isinstance(content, str):
        return (Text(content),)
    if not isinstance(content, list):
        raise InvalidRequest(f"Invalid {place!r}: expected a string or a list of parts.", param=place)
    return tuple(_read_part(part, f"{place}[{index}]") for index, part in enumerate(content))


def _read_part(value: Any, place: str) -> Part:
    part = read_object(value, place)
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text"):
        return Text(read_string(part.get("text"), f"{place}.text"))
    if kind == "refusal":
        return Text(read_string(part.get("refusal"), f"{place}.refusal"))
    if kind in ("image_url", "input_image"):
        source: Any = part.get("image_url")
        detail: Any = part.get("detail")
        if isinstance(source, dict):
            source, detail = source.get("url"), source.get("detail")
        return Image(read_string(source, f"{place}.image_url"), detail if isinstance(detail, str) else None)
    raise InvalidRequest(
        f"Invalid {place!r}: content of type {kind!r} is not supported; use text or image parts.",
        param=f"{place}.type",
        code="unsupported_content",
    )


def read_function(data: dict[str, Any], place: str) -> FunctionTool:
    """A function definition: name, description, parameters, strict."""
    name = read_name(data.get("name"), f"{place}.name")
    description, parameters, strict = data.get("description"), data.get("parameters"), data.get("strict")
    if description is not None:
        read_string(description, f"{place}.description")
    if parameters is not None and not isinstance(parameters, dict | bool):
        raise InvalidRequest(f"Invalid {place + '.parameters'!r}: expected a JSON Schema.", param=f"{place}.parameters")
    if strict is not None and not isinstance(strict, bool):
        raise InvalidRequest(f"Invalid {place + '.strict'!r}: expected a boolean.", param=f"{place}.strict")
    return FunctionTool(name, description, parameters, strict)


def read_call_id(value: Any, place: str) -> str:
    """The id of a call. It is written into prompts, so it holds nothing that could look like more than an id."""
    if not isinstance(value, str) or not _CALL_ID.fullmatch(value):
        raise InvalidRequest(f"Invalid {place!r}: a call id has 1 to 256 letters, digits or punctuation.", param=place)
    return value


def read_name(value: Any, place: str) -> str:
    """The name of a function."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InvalidRequest(
            f"Invalid {place!r}: a function's name has 1 to 128 letters, digits or any of _ . : -", param=place
        )
    return value


def read_tools(tools: list[Any] | None) -> tuple[Tool, ...]:
    """The `tools` of either format: functions nested (chat) or flat (responses), other types verbatim."""
    if not tools:
        return ()
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"Too many tools: {len(tools)}; the limit is {MAX_TOOLS}.", param="tools")
    result: list[Tool] = []
    names: set[str] = set()
    for index, entry in enumerate(tools):
        place = f"tools[{index}]"
        data = read_object(entry, place)
        kind = data.get("type", "function")
        if kind != "function":
            result.append(RawTool(read_string(kind, f"{place}.type"), data))
            continue
        nested = data.get("function")
        tool = read_function(nested, f"{place}.function") if isinstance(nested, dict) else read_function(data, place)
        if tool.name in names:
            raise InvalidRequest(f"Two tools have the name {tool.name!r}.", param=place)
        names.add(tool.name)
        result.append(tool)
    return tuple(result)


def read_tool_choice(choice: Any, tools: Iterable[Tool]) -> ToolChoice:
    """`tool_choice`: a word, or the object form that names a function."""
    if choice is None:
        return ToolChoice()
    if choice in ("auto", "none", "required"):
        return ToolChoice(cast(Any, choice))
    data = read_object(choice, "tool_choice")
    if data.get("type") != "function":
        raise InvalidRequest(
            f"Invalid 'tool_choice': {data.get('type')!r} is not supported; use auto, none, required or a function.",
            param="tool_choice",
        )
    nested = data.get("function")
    name = nested.get("name") if isinstance(nested, dict) else data.get("name")
    name = read_string(name, "tool_choice.name")
    if name not in {tool.name for tool in tools if isinstance(tool, FunctionTool)}:
        raise InvalidRequest(f"'tool_choice' names {name!r}, which is not among the tools.", param="tool_choice")
    return ToolChoice("named", name)


def read_format(data: Mapping[str, Any] | None, place: str) -> OutputFormat | None:
    """`response_format` (schema nested) or `text.format` (schema flat); None for plain text."""
    if data is None or data.get("type") in (None, "text"):
        return None
    kind = data["type"]
    if kind == "json_object":
        return OutputFormat("json_object", data)
    if kind != "json_schema":
        raise InvalidRequest(f"Invalid {place + '.type'!r}: {kind!r}.", param=f"{place}.type")
    nested = data.get("json_schema")
    schema = nested.get("schema") if isinstance(nested, dict) else data.get("schema")
    return OutputFormat("json_schema", data, read_object(schema, f"{place}.schema"))


def check_outputs(items: Iterable[Item], param: str) -> None:
    """Every function output must follow its call: Codex would drop an orphan without a word."""
    called: set[str] = set()
    for item in items:
        if isinstance(item, FunctionCall):
            called.add(item.call_id)
        elif isinstance(item, FunctionOutput) and item.call_id not in called:
            raise InvalidRequest(
                f"No tool call found for the output with call_id {item.call_id!r}. "
                "Send the call and its output together.",
                param=param,
            )
