"""Tokens, roughly: for what is asked before a model has counted them, or when it was stopped before it could tell."""

from __future__ import annotations

import math
from typing import Any

from bridge import exact_json
from bridge.turn.items import FunctionCall, FunctionOutput, Image, Message
from bridge.turn.turn import Turn

BYTES_PER_TOKEN = 4
PER_ITEM = 4
PER_IMAGE = 800


def estimate_text(text: str) -> int:
    """The tokens of a text: four bytes of UTF-8 each, which is near the truth for English and for most code."""
    return math.ceil(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN)


def estimate_input(turn: Turn) -> int:
    """The tokens of all that a turn sends to the model, its tools included."""
    total = estimate_text(turn.instructions or "")
    for tool in turn.functions:
        total += estimate_text(tool.full_name + (tool.description or "")) + PER_ITEM
        total += math.ceil(len(exact_json.dumps(tool.parameters)) / BYTES_PER_TOKEN)
    for item in turn.items:
        total += PER_ITEM
        if isinstance(item, Message | FunctionOutput):
            total += estimate_text(item.text)
            total += PER_IMAGE * sum(isinstance(part, Image) for part in item.parts)
        elif isinstance(item, FunctionCall):
            total += estimate_text(item.name + item.arguments)
        else:
            total += estimate_text(_readable(item.data))
    return total


def _readable(data: Any) -> str:
    encrypted = data.get("encrypted_content") if hasattr(data, "get") else None
    return str(encrypted or data)
