"""What the names in a log mean, for people."""

from __future__ import annotations

from typing import Any

_REPAIRS = {
    "trailing_comma": "a comma too much was removed",
    "code_fence": "a code fence around it was removed",
    "surplus_suffix": "characters after the object were removed",
    "array_unwrapped": "the array around it was removed",
    "array_split": "an array of calls became several calls",
    "arguments_coerced": "the arguments were an object and became the JSON string that they should be",
    "unclosed": "the closing tag was missing",
    "damaged_json": "the block was damaged after its arguments had begun to stream; they end where they broke off",
}
_REJECTS = {
    "bad_json": "what stands between the tags is no JSON",
    "not_an_object": "what stands between the tags is no object",
    "no_name": "it names no tool",
    "bad_arguments": "the arguments are no JSON string of an object",
    "unknown_tool": "the request offered no tool of this name",
    "schema_mismatch": "the arguments do not fit the tool's schema",
    "not_parallel": "the request wanted one call at a time, and this is another",
    "choice_unmet": "the request demanded a call, and the model made none",
}


def explain_repair(name: str) -> str:
    """A repair, and what it did."""
    return f"{name}: {_REPAIRS[name]}" if name in _REPAIRS else name


def explain_reject(reason: str, payload: dict[str, Any]) -> str:
    """Why a block became no call; its text was given to the client as text."""
    wanted = payload.get("tool_choice")
    told = f"{reason}: {_REJECTS[reason]}" if reason in _REJECTS else reason
    return f"{told} (tool_choice {wanted})" if wanted else told


def explain_error(error: dict[str, Any]) -> list[str]:
    """What an error means for whoever asked, and what to do."""
    lines = []
    status, kind, param = error.get("http_status"), error.get("type"), error.get("param")
    about = [f"HTTP {status}" if status else "", str(kind or ""), f"parameter {param}" if param else ""]
    if any(about):
        lines.append(" · ".join(part for part in about if part))
    wait = error.get("retry_after")
    if isinstance(wait, int | float):
        lines.append(f"What to do: try again after {wait:g} s; the client was told so.")
    elif error.get("severity") == "transient":
        lines.append("What to do: try again; it may go away by itself.")
    elif kind == "invalid_request_error":
        lines.append("What to do: change the request; it fails the same way each time.")
    elif error.get("severity") == "fatal":
        lines.append("What to do: trying again does not help; `codex-bridge doctor` checks the setup.")
    return lines
