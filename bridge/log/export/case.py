"""A recorded request as a case of the laboratory: what was asked, and the calls that the answer made."""

from __future__ import annotations

import re
from typing import Any

from bridge.core.items import FunctionTool
from bridge.errors import BridgeError, InvalidRequest
from bridge.exact_json import text_of, try_loads
from bridge.log.content import client_answer
from bridge.log.recording import Recording
from bridge.protocols.registry import protocol_at
from bridge.protocols.responses.build import build_item

CATEGORY = "recorded"


def case_of(recording: Recording) -> dict[str, Any]:
    """The case, in the format of a suite (docs/lab.md). Raises InvalidRequest for a request that cannot be one.

    The calls that were made are expected, with these arguments. A person decides whether they were right.
    """
    turn = _turn(recording)
    tools = [_tool(tool) for tool in turn.tools if isinstance(tool, FunctionTool) and not tool.custom]
    offered = {tool["name"] for tool in tools}
    answer = client_answer(recording)
    calls = [_call(part.name, part.text) for choice in answer.choices[:1] for part in choice.calls]
    known = [call for call in calls if call["name"] in offered]
    choice, notes = (
        turn.tool_choice,
        f"From {recording.id}, answered by {text_of((recording.start or {}).get('model'))}.",
    )
    if answer.error is not None or not recording.complete:
        notes += " The answer failed or is not whole: write what a right answer calls."
    if len(known) < len(calls):
        notes += " Calls of tools that the request does not offer were left out."
    case: dict[str, Any] = {"id": _id(recording.id), "category": CATEGORY}
    if turn.instructions:
        case["instructions"] = turn.instructions
    case["input"] = [build_item(item) for item in turn.items]
    if tools:
        case["tools"] = tools
    if choice.mode == "named" and choice.name in offered:
        case["tool_choice"] = {"name": choice.name}
    elif choice.mode != "named" and choice.mode != "auto" and (tools or choice.mode == "none"):
        case["tool_choice"] = choice.mode
    if not turn.parallel:
        case["parallel"] = False
    return case | {"expect": {"calls": known or "none"}, "notes": notes}


def case_yaml(recording: Recording) -> str:
    """A suite with this case alone. Raises InvalidRequest as `case_of` does."""
    import yaml  # large, and only this needs it

    suite = {"cases": [case_of(recording)]}
    return str(yaml.safe_dump(suite, sort_keys=False, allow_unicode=True, width=100))


def _turn(recording: Recording) -> Any:
    protocol, body = protocol_at(recording.path), recording.body
    if protocol is None or body is None:
        raise InvalidRequest(
            f"A request to {recording.path or 'an unknown path'} cannot become a case: use one of the Responses, chat, "
            "Messages or Gemini API whose body was read.",
            http_status=422,
        )
    try:
        return protocol.parse(body, ())
    except BridgeError as error:
        raise InvalidRequest(f"This request cannot become a case: {error.message}", http_status=422) from None


def _tool(tool: FunctionTool) -> dict[str, Any]:
    about: dict[str, Any] = {"name": tool.full_name}
    if tool.description:
        about["description"] = tool.description
    if isinstance(tool.parameters, dict):
        about["parameters"] = tool.parameters
    return about if tool.strict is None else about | {"strict": tool.strict}


def _call(name: str, arguments: str) -> dict[str, Any]:
    parsed = try_loads(arguments)
    given = parsed if isinstance(parsed, dict) else {}
    return {"name": name, "arguments": {each: _exactly(value) for each, value in given.items()}}


def _exactly(value: Any) -> Any:
    """A value that is not read as a rule: an object with a `$` before a name would be one."""
    return {"$anything": True} if _has_rule(value) else value


def _has_rule(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_rule, value))
    return isinstance(value, dict) and (
        any(key.startswith("$") for key in value) or any(map(_has_rule, value.values()))
    )


def _id(name: str) -> str:
    """An id that a case may have."""
    return f"recorded-{re.sub('[^a-z0-9-]+', '-', name.removeprefix('req_').lower())[:60]}".strip("-")
