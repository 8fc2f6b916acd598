"""Requests, items and tools as the Responses API writes them; `protocols/items.py` and `tooling.py` read them.

`build_item` is exact: parsing its result gives the same item. A backend that needs another form changes the item first
(see `provider_item`) and builds that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

from bridge.core.events import CallBegun, ToolCall
from bridge.core.items import (
    Document,
    FunctionCall,
    FunctionOutput,
    FunctionTool,
    Image,
    Item,
    Message,
    Part,
    RawItem,
    Text,
    Tool,
    ToolChoice,
)
from bridge.core.thoughts import own_items
from bridge.core.turn import AUTO, CODEX_TIERS, Turn
from bridge.protocols.client import Json, NewId
from bridge.protocols.items import missing_call
from bridge.protocols.reading import ENCRYPTED


def build_item(item: Item) -> Json:
    """One item."""
    if isinstance(item, RawItem):
        return dict(item.data)
    if isinstance(item, Message):
        kind = "output_text" if item.role == "assistant" else "input_text"
        return {"type": "message", "role": item.role, "content": [_part(part, kind) for part in item.parts]}
    if isinstance(item, FunctionCall):
        return _call(item, item.arguments)
    match item.parts:
        case (Text(text),):
            output: str | list[Json] = text
        case parts:
            output = [_part(part, "input_text") for part in parts]
    kind = "custom_tool_call_output" if item.custom else "function_call_output"
    return {"type": kind, "call_id": item.call_id, "output": output}


def provider_item(item: Item) -> Item:
    """An item as a provider accepts it: system messages are the developer's, names have no namespace, every image has a
    detail, every file a name, and an output in several texts is one text.
    """
    if isinstance(item, Message):
        return Message("developer" if item.role == "system" else item.role, _with_details(item.parts))
    if isinstance(item, FunctionCall):
        return replace(item, name=offered_name(item), namespace=None)
    if isinstance(item, FunctionOutput):
        joined = join_output(item)
        return replace(joined, parts=_with_details(joined.parts))
    return item


def build_stored_items(items: Iterable[Item], new_id: NewId) -> list[Json]:
    """Items as the API stores and lists them, each with an id and a status."""
    return [_stored(item, new_id) for item in items]


def _stored(item: Item, new_id: NewId) -> Json:
    if isinstance(item, RawItem):
        given = item.data.get("id")
        return {**item.data, "id": given if isinstance(given, str) and given else new_id("item")}
    if isinstance(item, Message):
        data = build_item(replace(item, parts=_with_details(item.parts)))
        content = [part | _NOTES if part["type"] == "output_text" else part for part in data["content"]]
        head = {"id": new_id("msg"), "type": "message", "role": item.role, "status": "completed"}
        return {**head, "content": content}
    if isinstance(item, FunctionCall):
        return build_call(item, new_id("ctc" if item.custom else "fc"), "completed", item.arguments)
    data = build_item(provider_item(item))
    return {"id": new_id("fco"), "type": data.pop("type"), "status": "completed", **data}


def build_call(call: FunctionCall | CallBegun | ToolCall, item_id: str, status: str, arguments: str) -> Json:
    """A call as an item of an answer, with its arguments so far."""
    data = _call(call, arguments)
    return {"id": item_id, "type": data.pop("type"), "status": status, **data}


def _call(call: FunctionCall | CallBegun | ToolCall, arguments: str) -> Json:
    kind, member = ("custom_tool_call", "input") if call.custom else ("function_call", "arguments")
    data = {"type": kind, "call_id": call.call_id, "name": call.name, member: arguments}
    return data if call.namespace is None else data | {"namespace": call.namespace}


def join_output(output: FunctionOutput) -> FunctionOutput:
    """An output of several texts as one text, which every provider accepts."""
    plain = all(isinstance(part, Text) for part in output.parts)
    return replace(output, parts=(Text(output.text),)) if plain else output


_NOTES: Json = {"annotations": [], "logprobs": []}
"""The other members of a text of the assistant in an answer."""


def output_text(text: str) -> Json:
    """A text of the assistant as a part of an answer."""
    return {"type": "output_text", "text": text, **_NOTES}


def _part(part: Part, kind: str) -> Json:
    if isinstance(part, Text):
        return {"type": kind, "text": part.text}
    if isinstance(part, Document):
        named = {} if part.name is None else {"filename": part.name}
        return {"type": "input_file", "file_url" if part.media_type is None else "file_data": part.url, **named}
    detail = {} if part.detail is None else {"detail": part.detail}
    return {"type": "input_image", "image_url": part.url, **detail}


def _with_details(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The API requires a detail of an image, and a name of a file that is sent whole."""
    return tuple(map(_with_detail, parts))


def _with_detail(part: Part) -> Part:
    if isinstance(part, Image):
        return replace(part, detail=part.detail or "auto")
    if isinstance(part, Document) and part.media_type is not None and part.name is None:
        return replace(part, name=document_name(part))
    return part


def document_name(document: Document) -> str:
    """The name of a document, or one that its type implies."""
    ending = (document.media_type or "").rpartition("/")[2]
    return document.name or f"document.{ending if ending.isalnum() else 'bin'}"


def build_tools(tools: Iterable[Tool]) -> list[Json]:
    """The tools of a request; the functions of a namespace are in one object."""
    return list(_tools(tools))


def _tools(tools: Iterable[Tool]) -> Iterator[Json]:
    for namespace, group in groupby(tools, lambda tool: tool.namespace if isinstance(tool, FunctionTool) else None):
        built = [_tool(tool) for tool in group]
        if namespace is None:
            yield from built
        else:
            yield {"type": "namespace", "name": namespace, "tools": built}


def _tool(tool: Tool) -> Json:
    if not isinstance(tool, FunctionTool):
        return dict(tool.data)
    if tool.raw is not None:
        return {"type": "custom", **tool.raw}
    given = {"description": tool.description, "strict": tool.strict, "parameters": tool.parameters}
    return {
        "type": "function",
        "name": tool.name,
        **{name: value for name, value in given.items() if value is not None},
    }


def provider_tool(tool: Tool) -> Tool:
    """A tool as a provider accepts it: no namespace, strict or not, and always with parameters."""
    if not isinstance(tool, FunctionTool) or tool.raw is not None:
        return replace(tool, namespace=None) if isinstance(tool, FunctionTool) else tool
    parameters = tool.parameters if tool.parameters is not None else {"type": "object", "properties": {}}
    return FunctionTool(offered_name(tool), tool.description, parameters, bool(tool.strict))


def offered_name(tool: FunctionTool | FunctionCall) -> str:
    """The name of a function upstream, where names have neither a namespace nor a dot."""
    return tool.full_name.replace(".", "__") if tool.namespace else tool.name


def build_tool_choice(choice: ToolChoice, tools: Iterable[Tool]) -> Any:
    """`tool_choice`: a word, or the function or custom tool that must be called."""
    if choice.mode != "named":
        return choice.mode
    functions = (tool for tool in tools if isinstance(tool, FunctionTool))
    tool = next((tool for tool in functions if tool.full_name == choice.name), None)
    return {"type": "custom" if tool is not None and tool.custom else "function", "name": choice.name}


def build_request(turn: Turn) -> Json:
    """A turn as a client would send it: `parse_responses` reads the same turn from it, but for the decisions of the
    router (backend, provider, key) and the fields of the chat protocol (`n`, `stop`).
    """
    return _given(_members(turn))


def _members(turn: Turn) -> Json:
    """The members of a body, in order; None where the turn does not ask for one."""
    reasoning = {"effort": turn.effort, "summary": turn.summary}
    text = {"verbosity": turn.verbosity, "format": None if turn.output_format is None else dict(turn.output_format.raw)}
    choice = build_tool_choice(turn.tool_choice, turn.tools)
    return {
        "model": turn.requested_model,
        "instructions": turn.instructions,
        "input": [build_item(item) for item in turn.items],
        "tools": build_tools(turn.tools) or None,
        "tool_choice": choice if turn.tools or choice != "auto" else None,
        "parallel_tool_calls": turn.parallel if turn.tools or not turn.parallel else None,
        "reasoning": _given(reasoning) or None,
        "store": False,
        "stream": turn.stream,
        "stream_options": {"include_usage": True} if turn.include_usage else None,
        "include": [ENCRYPTED] if turn.encrypted_reasoning else None,
        "prompt_cache_key": turn.session,
        "text": _given(text) or None,
        "temperature": turn.temperature,
        "top_p": turn.top_p,
        "max_output_tokens": turn.max_output_tokens,
        "service_tier": turn.service_tier,
    }


def _given(members: Json) -> Json:
    return {name: value for name, value in members.items() if value is not None}


def _provider_turn(turn: Turn, session: str) -> Turn:
    """The turn as a provider accepts it: streamed, and without reference to an earlier response."""
    choice, wanted = turn.tool_choice, turn.output_format
    names = {tool.full_name: offered_name(tool) for tool in turn.functions}
    if wanted is not None:
        schema = (
            {} if wanted.schema is None else {"name": wanted.name, "strict": wanted.strict, "schema": wanted.schema}
        )
        wanted = replace(wanted, raw={"type": wanted.type, **schema})
    return replace(
        turn,
        requested_model=turn.model,
        instructions=turn.instructions or "",
        items=tuple(provider_item(item) for item in own_items(turn) if not _is_silence(item)),
        tools=tuple(map(provider_tool, turn.tools)),
        tool_choice=replace(choice, name=names.get(choice.name or "", choice.name)),
        output_format=wanted,
        session=session,
        stream=True,
        include_usage=False,
    )


def build_codex_request(turn: Turn, session: str) -> Json:
    """The body for Codex's own provider, which has an opinion on every option and refuses some."""
    sent = replace(
        _provider_turn(turn, session),
        effort=turn.effort or "medium",
        summary=turn.summary or "auto",
        verbosity=turn.verbosity or "medium",
        service_tier=CODEX_TIERS.get(turn.service_tier or ""),
        encrypted_reasoning=True,
        temperature=None,
        top_p=None,
        max_output_tokens=None,
    )
    choice = build_tool_choice(sent.tool_choice, sent.tools)
    tooling = {"tools": build_tools(sent.tools), "tool_choice": choice, "parallel_tool_calls": turn.parallel}
    return _given(_members(sent) | tooling)


def build_provider_request(turn: Turn, session: str) -> Json:
    """The body for any other provider: what the client asks for, with the options that Codex's provider refuses."""
    sent = _provider_turn(turn, session)
    return build_request(sent if sent.tools else replace(sent, tool_choice=AUTO, parallel=True))


def check_pairs(items: tuple[Item, ...]) -> None:
    """Refuse an output without its call before anything is sent: the backend would answer 400."""
    called = {_call_id(item) for item in items if _is(item, "_call")}
    for item in items:
        if _is(item, "_call_output") and _call_id(item) not in called:
            raise missing_call(_call_id(item), "input")


def _is(item: Item, ending: str) -> bool:
    if isinstance(item, RawItem):
        return item.type in (f"function{ending}", f"custom_tool{ending}")
    return isinstance(item, FunctionCall if ending == "_call" else FunctionOutput)


def _call_id(item: Item) -> str | None:
    call_id = item.data.get("call_id") if isinstance(item, RawItem) else getattr(item, "call_id", None)
    return call_id if isinstance(call_id, str) else None


def _is_silence(item: Item) -> bool:
    """An empty message of the assistant, which chat clients send with calls."""
    return isinstance(item, Message) and item.role == "assistant" and not item.text
