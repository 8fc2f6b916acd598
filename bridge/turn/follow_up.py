"""The next turn of a conversation in which functions were called: all that was said, and what they gave back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bridge.turn.collect import ReasoningOutput, Result, TextOutput
from bridge.turn.events import ToolCall
from bridge.turn.items import FunctionCall, FunctionOutput, Item, Message, RawItem, Text
from bridge.turn.turn import AUTO, Turn


def follow_up(turn: Turn, result: Result, outputs: Sequence[str]) -> Turn:
    """`turn` continued by its result. `outputs` are those of `result.calls`, in that order; each follows its call.

    A choice that forced the first call is over: the model may now answer.
    """
    given = iter(outputs)
    items: list[Item] = list(turn.items)
    for output in result.outputs:
        if isinstance(output, TextOutput):
            items.append(Message("assistant", (Text(output.text),)))
        elif isinstance(output, ReasoningOutput):
            if output.encrypted is not None:
                items.append(RawItem("reasoning", _reasoning(output)))
        elif isinstance(output, ToolCall):
            items.append(FunctionCall(output.call_id, output.name, output.arguments, output.namespace, output.custom))
            items.append(FunctionOutput(output.call_id, (Text(next(given)),), output.custom))
    forced = turn.tool_choice.mode in ("required", "named")
    return replace(turn, items=tuple(items), tool_choice=AUTO if forced else turn.tool_choice, tool_text=None)


def _reasoning(output: ReasoningOutput) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": text} for text in output.summary_parts()]
    return {"type": "reasoning", "id": output.item, "summary": summary, "encrypted_content": output.encrypted}
