"""The response object: the echo of the request, and the result. Every member is always present.

A member is null only if the Open Responses specification allows it, which is stricter than OpenAI's client types: the
sampling parameters are numbers and the service tier is a string even if the request has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bridge.core.events import Usage
from bridge.core.items import OutputFormat
from bridge.core.turn import Turn
from bridge.errors import BridgeError

_STREAM_ERROR_CODES = frozenset({"server_error", "rate_limit_exceeded", "invalid_prompt"})
"""Error codes in clients' types of a failed response."""

NEVER_FILLED = (
    "access_programs",
    "image",
    "input_transformations",
    "moderation",
    "prompt_cache_diagnostics",
    "prompt_cache_options",
    "prompt_cache_retention",
    "tool_usage",
)
"""Members of the API's type that have no value here."""

_USUAL: dict[str, Any] = {
    "model": None,
    "instructions": None,
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "text": {"format": {"type": "text"}},
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "previous_response_id": None,
    "conversation": None,
    "prompt": None,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "background": False,
    "top_logprobs": 0,
    "truncation": "disabled",
    "user": None,
    **dict.fromkeys(NEVER_FILLED),
}
"""The echo of a request without options, in the order of the members."""


@dataclass(frozen=True, slots=True)
class Echo:
    """The members of a response that repeat its request."""

    members: Mapping[str, Any]
    """Those that differ from the defaults: a stream keeps them in memory while it runs."""

    def response(
        self,
        response_id: str,
        created_at: int,
        *,
        status: str,
        output: list[dict[str, Any]],
        usage: dict[str, Any] | None,
        error: dict[str, Any] | None = None,
        incomplete_details: dict[str, Any] | None = None,
        completed_at: int | None = None,
    ) -> dict[str, Any]:
        """The object in one state."""
        return {
            "id": response_id,
            "object": "response",
            "created_at": created_at,
            "status": status,
            "completed_at": completed_at,
            "error": error,
            "incomplete_details": incomplete_details,
            **_USUAL,
            **self.members,
            "output": output,
            "usage": usage,
        }


def echo_of(data: Mapping[str, Any], turn: Turn, *, store: bool = False) -> Echo:
    """The echo of the body `data`, which has either shape. `store`: the response will be stored."""
    metadata = data.get("metadata")
    tier = _string(data.get("service_tier"))
    verbosity = {} if turn.verbosity is None else {"verbosity": turn.verbosity}
    said = {
        "model": turn.requested_model,
        "instructions": turn.instructions,
        "tools": [_tool(tool) for tool in data.get("tools") or ()],
        "tool_choice": _choice(data.get("tool_choice")),
        "parallel_tool_calls": turn.parallel,
        "reasoning": {"effort": turn.effort, "summary": None if turn.summary == "none" else turn.summary},
        "text": {"format": _format(turn.output_format), **verbosity},
        "temperature": turn.temperature,
        "top_p": turn.top_p,
        "presence_penalty": _penalty(data.get("presence_penalty")),
        "frequency_penalty": _penalty(data.get("frequency_penalty")),
        "max_output_tokens": turn.max_output_tokens,
        "metadata": metadata if isinstance(metadata, dict) else {},
        "previous_response_id": _string(data.get("previous_response_id")),
        "conversation": _conversation(data.get("conversation")),
        "prompt_cache_key": _string(data.get("prompt_cache_key")),
        "safety_identifier": _string(data.get("safety_identifier")),
        "service_tier": None if tier in ("", "auto") else tier,
        "store": store,
        "background": data.get("background") is True,
        "user": _string(data.get("user")),
    }
    # None means that the request has no such option: the default applies, which is not always null.
    return Echo({name: value for name, value in said.items() if value is not None and value != _USUAL[name]})


def conversation_id(data: Mapping[str, Any]) -> str | None:
    """The conversation that a request belongs to: its id, or an object with it."""
    given = data.get("conversation")
    return _string(given.get("id") if isinstance(given, dict) else given)


def usage_object(usage: Usage) -> dict[str, Any]:
    """Usage as the Responses API writes it."""
    return {
        **({"estimated": True} if usage.estimated else {}),
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.total,
    }


def error_object(error: BridgeError) -> dict[str, Any]:
    """The `error` member of a failed response: a code that clients know, and ours."""
    if error.code in _STREAM_ERROR_CODES:
        code = error.code
    elif error.http_status == 429:
        code = "rate_limit_exceeded"
    else:
        code = "invalid_prompt" if error.http_status in (400, 413) else "server_error"
    return {"code": code, "message": error.message, "bridge_code": error.code}


def _tool(data: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in the Responses form, all members of a function present."""
    if data.get("type", "function") != "function":
        tool = _flat(data, "custom")
        form = tool.get("format")
        return tool | ({"format": _flat(form, "grammar")} if isinstance(form, dict) else {})
    nested = data.get("function")
    given = nested if isinstance(nested, dict) else data
    parameters = given.get("parameters")
    return {
        "type": "function",
        "name": given.get("name"),
        "description": given.get("description"),
        # A request may have the schema `true`; clients' types have only objects and null.
        "parameters": parameters if isinstance(parameters, dict) else None,
        "strict": given.get("strict") is True,
    }


def _choice(choice: Any) -> Any:
    """A choice in the Responses form, where nothing is nested."""
    if not isinstance(choice, dict):
        return choice or "auto"
    flat = _flat(_flat(_flat(choice, "function"), "custom"), "allowed_tools")
    if flat.get("type") == "allowed_tools":
        tools = flat.get("tools")
        chosen = [_choice(tool) for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
        return {"mode": "auto"} | flat | {"tools": chosen}
    return flat


def _flat(data: Mapping[str, Any], member: str) -> dict[str, Any]:
    """An object with one member replaced by the members of that member."""
    nested = data.get(member)
    if not isinstance(nested, dict):
        return dict(data)
    return {name: value for name, value in data.items() if name != member} | nested


def _format(output: OutputFormat | None) -> dict[str, Any]:
    if output is None:
        return {"type": "text"}
    if output.type != "json_schema":
        return {"type": output.type}
    return {
        "type": "json_schema",
        "name": output.name,
        "description": output.description,
        "schema": output.schema,
        "strict": output.strict,
    }


def _penalty(value: Any) -> float | None:
    """A penalty in the API's range. Nothing else reads or checks it."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and -2 <= value <= 2 else None


def _conversation(given: Any) -> dict[str, Any] | None:
    name = conversation_id({"conversation": given})
    return None if name is None else {"id": name}


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None
