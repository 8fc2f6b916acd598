"""The response object: what the request said, echoed, and what came of it. Every member is always present."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bridge.errors import BridgeError
from bridge.turn.events import Usage
from bridge.turn.items import FunctionTool
from bridge.turn.turn import Turn

_STREAM_ERROR_CODES = frozenset({"server_error", "rate_limit_exceeded", "invalid_prompt"})
"""Codes that clients' types know for a failed response."""


@dataclass(frozen=True, slots=True)
class Echo:
    """The members of a response that repeat its request."""

    members: Mapping[str, Any]

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
    ) -> dict[str, Any]:
        """The whole object in one state."""
        return {
            "id": response_id,
            "object": "response",
            "created_at": created_at,
            "status": status,
            "completed_at": created_at if status == "completed" else None,
            "error": error,
            "incomplete_details": incomplete_details,
            **self.members,
            "output": output,
            "usage": usage,
        }


def echo_of(data: Mapping[str, Any], turn: Turn) -> Echo:
    """What a response repeats of the request's body `data`."""
    text = data.get("text") or {}
    return Echo(
        {
            "model": turn.requested_model,
            "instructions": turn.instructions,
            "tools": [_tool(tool) if isinstance(tool, FunctionTool) else dict(tool.data) for tool in turn.tools],
            "tool_choice": data.get("tool_choice") or "auto",
            "parallel_tool_calls": data.get("parallel_tool_calls") is not False,
            "reasoning": {"effort": turn.effort, "summary": turn.summary},
            "text": {"format": text.get("format") or {"type": "text"}, **_only(text, "verbosity")},
            "temperature": turn.temperature,
            "top_p": turn.top_p,
            "max_output_tokens": turn.max_output_tokens,
            "max_tool_calls": None,
            "metadata": data.get("metadata") or {},
            "previous_response_id": None,
            "conversation": None,
            "prompt": None,
            "prompt_cache_key": _string(data.get("prompt_cache_key")),
            "prompt_cache_retention": None,
            "safety_identifier": _string(data.get("safety_identifier")),
            "service_tier": None,
            "store": False,
            "background": False,
            "top_logprobs": 0,
            "truncation": "disabled",
            "user": _string(data.get("user")),
        }
    )


def usage_object(usage: Usage) -> dict[str, Any]:
    """Usage in the Responses spelling."""
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.total,
    }


def error_object(error: BridgeError) -> dict[str, Any]:
    """The `error` member of a failed response: a code that clients know, and ours beside it."""
    if error.code in _STREAM_ERROR_CODES:
        code = error.code
    elif error.http_status == 429:
        code = "rate_limit_exceeded"
    else:
        code = "invalid_prompt" if error.http_status in (400, 413) else "server_error"
    return {"code": code, "message": error.message, "bridge_code": error.code}


def _tool(tool: FunctionTool) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": bool(tool.strict),
    }


def _only(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {name: data[name]} if data.get(name) is not None else {}


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None
