"""A case for the laboratory, made of a recorded request: what was asked, with the recorded calls as the expectation.

The case is a draft. A model that was wrong made the recorded call, so its author edits the expectation. Whatever no
suite accepts (a call that was not offered, or does not fit its schema) is therefore replaced by the nearest
expectation that one does, and the notes of the case say so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from bridge import exact_json
from bridge.core.items import FunctionCall, FunctionOutput, FunctionTool, Item, Message, Text
from bridge.core.turn import Turn
from bridge.errors import InvalidRequest, UsageError
from bridge.exact_json import member, text_of, try_loads
from bridge.log.content import Answer, client_answer
from bridge.log.export import ExportedTurn
from bridge.log.recording import Recording
from bridge.log.request import Part
from bridge.protocols.cap.decoder import effective_meta
from bridge.protocols.registry import PROTOCOLS, protocol_at
from bridge.protocols.responses.build import build_item
from bridge.redact import Redactor
from bridge.tools.parameters import required_names, takes
from bridge.tools.schema import compact_json, compile_schema

Json = dict[str, Any]

CATEGORY = "recorded"
MAX_ID = 90
"""Characters of an id; a suite accepts ten more, for the number of a repeated one."""
ANYTHING: Json = {"*": {"$anything": True}}
"""The arguments of an expected call that accept all others."""

_NOT_IN_IDS = re.compile(r"[^a-z0-9]+")
_RESPONSES = PROTOCOLS["responses"]


def case_yaml(recording: Recording) -> str:
    """A suite with one case made of a recorded request, as YAML. Raises UsageError if it cannot become a case."""
    return suite_yaml([build_case(recording)])


def build_case(recording: Recording, earlier: Sequence[Json] = ()) -> Json:
    """The case of a recorded request, without secrets. `earlier` are the items of the response that it continues.

    Raises UsageError if it cannot become a case.
    """
    turn = _read_turn(recording, earlier)
    exported = ExportedTurn(recording)
    functions = [tool for tool in turn.functions if not tool.custom]
    notes = [_origin(exported)]
    if len(functions) < len(turn.tools):
        notes.append("Tools that are not functions with JSON arguments are left out.")
    if not earlier and text_of((recording.body or {}).get("previous_response_id")):
        notes.append("The request continues an answer that is not in the log: add the earlier messages.")
    case: Json = {"id": case_id(recording.id), "category": CATEGORY}
    if turn.instructions:
        case["instructions"] = turn.instructions
    case |= _conversation(turn.items)
    tools = {tool.full_name: tool for tool in functions}
    if tools:
        case["tools"] = [_tool(tool) for tool in tools.values()]
    choice = turn.tool_choice
    if choice.mode == "named" and choice.name in tools:
        case["tool_choice"] = {"name": choice.name}
    elif choice.mode in ("none", "required") and tools:
        case["tool_choice"] = choice.mode
    if not turn.parallel:
        case["parallel"] = False
    case["expect"] = {"calls": _expected(exported.answer, tools, case, notes) or "none"}
    case["notes"] = " ".join(notes)
    found: Json = exact_json.loads(Redactor().json(exact_json.dumps(case)))
    return found


def case_id(name: str) -> str:
    """The id of a case for a request of this id."""
    return _NOT_IN_IDS.sub("-", name.lower()).strip("-")[:MAX_ID].rstrip("-") or CATEGORY


def answer_items(answer: Answer) -> list[Json]:
    """The first answer as items of a later request that continues it."""
    parts = answer.choices[0].parts if answer.choices else []
    return [item for part in parts for item in _answer_item(part)]


def _answer_item(part: Part) -> Iterator[Json]:
    if part.kind == "text" and part.text:
        yield {"role": "assistant", "content": part.text}
    elif part.kind == "call":
        yield {"type": "function_call", "call_id": part.call_id, "name": part.name, "arguments": part.text}


def input_items(recording: Recording) -> list[Json]:
    """The items of a request of the Responses API, without what it continues."""
    given = _body(recording).get("input")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []


def _body(recording: Recording) -> Json:
    """The body of the request; over the WebSocket of the Responses API it may be wrapped."""
    body = recording.body
    if body is None:
        raise UsageError("The body of the request is not in the log.")
    nested = body.get("response")
    return nested if isinstance(nested, dict) and not body.keys() & {"input", "messages"} else body


def _read_turn(recording: Recording, earlier: Sequence[Json]) -> Turn:
    body = _body(recording)
    payload = body.get("payload")
    if isinstance(payload, dict) and "query" in payload:  # CAP: a question and its instructions
        instructions = text_of(effective_meta(payload.get("meta")).get("instructions"))
        body = {"input": text_of(payload["query"]), "instructions": instructions or None}
        protocol = _RESPONSES
    else:
        found = _RESPONSES if recording.path == "exec" else protocol_at(recording.path)
        if found is None:
            raise UsageError(f"Requests to {recording.path or 'an unknown path'} do not ask a model.")
        protocol = found
    try:
        return protocol.parse({"model": "recorded", **body}, earlier)
    except InvalidRequest as error:
        raise UsageError(f"The request is not valid: {error.message}") from None


def _origin(exported: ExportedTurn) -> str:
    summary = exported.summary
    model = f" to {summary.model}" if summary.model else ""
    outcome = summary.outcome or "unfinished"
    ending = "" if outcome == "completed" else f" It ended as {outcome}, so nothing is known about a right answer."
    return f"Recorded{model} at {summary.time or 'an unknown time'}.{ending}"


def _tool(tool: FunctionTool) -> Json:
    given = {"description": tool.description, "strict": tool.strict, "parameters": tool.parameters}
    return {"name": tool.full_name, **{name: value for name, value in given.items() if value is not None}}


# The conversation: chat messages, which are easier to edit, unless something in it has no such form


def _conversation(items: Sequence[Item]) -> Json:
    messages: list[Json] = []
    for item in items:
        message = _message(item)
        if message is None:
            return {"input": [build_item(item) for item in items]}
        last = messages[-1] if messages else {}
        if isinstance(item, FunctionCall) and "tool_calls" in last:
            last["tool_calls"] += message["tool_calls"]
        else:
            messages.append(message)
    return {"messages": messages}


def _message(item: Item) -> Json | None:
    """An item as a chat message; None if it has no such form."""
    if isinstance(item, Message | FunctionOutput):
        part = item.parts[0] if len(item.parts) == 1 else None
        if not isinstance(part, Text):
            return None
        text = part.text
        if isinstance(item, Message):
            return {"role": item.role, "content": text}
        return None if item.custom else {"role": "tool", "tool_call_id": item.call_id, "content": text}
    if not isinstance(item, FunctionCall) or item.custom or item.namespace is not None:
        return None
    function = {"name": item.name, "arguments": _readable(item.arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": item.call_id, "function": function}]}


def _readable(arguments: str) -> Any:
    """Arguments as an object if that stands for exactly this text."""
    value = try_loads(arguments)
    return value if isinstance(value, dict) and compact_json(value) == arguments else arguments


# The expectation


def _expected(answer: Answer, tools: Mapping[str, FunctionTool], case: Json, notes: list[str]) -> list[Json]:
    """The recorded calls, as far as a suite accepts them."""
    calls = answer.choices[0].calls if answer.choices else []
    offered = [call for call in calls if call.name in tools]
    for call in calls:
        if call.name not in tools:
            notes.append(f"The model called {call.name[:80]}, which is not offered.")
    choice = case.get("tool_choice", "auto")
    named = choice["name"] if isinstance(choice, dict) else None
    if choice == "none":
        if offered:
            notes.append("The model called a tool although tool_choice is none.")
        return []
    if named is not None and (wrong := [call for call in offered if call.name != named]):
        notes.append(f"The model called {wrong[0].name} although tool_choice names another tool.")
        offered = [call for call in offered if call.name == named]
    if len(offered) > 1 and case.get("parallel") is False:
        notes.append("The model made several calls although only one is allowed.")
        offered = offered[:1]
    if not offered and choice in ("auto", "required") and not (choice == "required" and tools):
        return []
    if not offered:
        notes.append("The model called nothing although tool_choice demands a call.")
        return [{"name": named or next(iter(tools)), "arguments": dict(ANYTHING)}]
    return [_expected_call(call, tools[call.name], notes) for call in offered]


def _expected_call(call: Part, tool: FunctionTool, notes: list[str]) -> Json:
    arguments = try_loads(call.text or "{}")
    if not isinstance(arguments, dict) or not _fits(tool, arguments):
        notes.append(f"The recorded arguments of {call.name} do not fit its schema: {call.text[:500]}")
        return {"name": call.name, "arguments": dict(ANYTHING)}
    return {"name": call.name, "arguments": {name: _literal(value) for name, value in arguments.items()}}


def _fits(tool: FunctionTool, arguments: Json) -> bool:
    """Whether a suite accepts these arguments as expected ones."""
    check = compile_schema(tool.parameters)
    return (
        (check is None or check(arguments))
        and all(name != "*" and takes(tool.parameters, name) for name in arguments)
        and all(name in arguments for name in required_names(tool.parameters))
    )


def _literal(value: Any) -> Any:
    """A value that no suite mistakes for a rule."""
    if isinstance(value, list):
        return [_literal(each) for each in value]
    if isinstance(value, dict):
        if any(name.startswith("$") for name in value):
            return {"$anything": True}
        return {name: _literal(each) for name, each in value.items()}
    return value


# YAML


class _Dumper(yaml.SafeDumper):
    """Quotes all text but keys, so that no reader takes it for a number, a date or a word such as `no`."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    text = text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    style = "|" if "\n" in text else None if _PLAIN.fullmatch(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_PLAIN = re.compile(r"(?!(?i:true|false|null|yes|no|on|off|y|n)\Z)[A-Za-z][A-Za-z_-]*")
_Dumper.add_representer(str, _represent_text)


def suite_yaml(cases: Iterable[Json]) -> str:
    """A suite of these cases. A definition of a tool that several cases have is written once; ids are made distinct."""
    shared: dict[str, Json] = {}
    written, ids = [], set[str]()
    for case in cases:
        tools = [_share(tool, shared) for tool in case.get("tools", ())]
        name, number = case["id"], 1
        while name in ids:
            number += 1
            name = f"{case['id']}-{number}"
        ids.add(name)
        written.append({**case, "id": name, **({"tools": tools} if tools else {})})
    suite: Json = {"tools": shared} if shared else {}
    return dump_yaml({**suite, "cases": written})


def dump_yaml(value: Any) -> str:
    """A JSON value as YAML that the lab reads as the same value."""
    return yaml.dump(value, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=100)


def _share(tool: Any, shared: dict[str, Json]) -> Any:
    """The name of a shared tool, or the definition if another one has that name."""
    name = member(tool, "name")
    if not isinstance(name, str):
        return tool
    definition = {key: value for key, value in tool.items() if key != "name"}
    return name if shared.setdefault(name, definition) == definition else tool


def recorded_answer(recording: Recording) -> tuple[str | None, list[Json]]:
    """The id of an answer of the Responses API, and its items, which a later request may continue."""
    answer = client_answer(recording)
    return answer.response_id, answer_items(answer)
