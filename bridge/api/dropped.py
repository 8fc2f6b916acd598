"""What a request asks for that Codex cannot do. It is left out, and named in a response header: never in silence."""

from __future__ import annotations

from typing import Any

from bridge.turn.items import RawTool
from bridge.turn.turn import Turn

HEADER = b"x-bridge-dropped"

_NEVER = (
    "temperature",
    "top_p",
    "max_output_tokens",
    "max_tokens",
    "max_completion_tokens",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "seed",
    "stop",
    "truncation",
    "max_tool_calls",
    "prediction",
    "modalities",
    "audio",
    "functions",
    "function_call",
    "service_tier",
    "verbosity",
)


def dropped_fields(data: dict[str, Any], turn: Turn) -> list[str]:
    """The names of fields and tools that have no effect on this turn."""
    names = [name for name in _NEVER if _given(data.get(name))]
    if data.get("parallel_tool_calls") is False:
        names.append("parallel_tool_calls")
    text = data.get("text")
    if isinstance(text, dict) and _given(text.get("verbosity")):
        names.append("text.verbosity")
    if turn.output_format is not None and turn.output_format.schema is None:
        names.append("response_format" if turn.endpoint == "chat" else "text.format")
    if turn.n is not None and turn.n > 1:
        names.append("n")
    names += sorted({f"tools:{tool.type[:40]}" for tool in turn.tools if isinstance(tool, RawTool)})
    return [name for name in names if name.isascii() and name.isprintable()]


def _given(value: Any) -> bool:
    return value is not None and value is not False and value != [] and value != {}
