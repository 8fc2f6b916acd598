"""A conversation as text, for a child that takes no history item by item (payloads §2).

Every line is labelled; images split the text. Reasoning items alone are left out: they are encrypted for the provider
and mean nothing as text.
"""

from __future__ import annotations

from collections.abc import Iterable

from bridge.tools.freeform import arguments_of
from bridge.tools.instructions import build_instructions
from bridge.tools.schema import compact_json
from bridge.tools.tags import neutralise
from bridge.turn.items import FunctionCall, FunctionOutput, Image, Item, Message, Part, RawItem, Text
from bridge.turn.turn import Turn


def flatten(items: Iterable[Item], *, guard_tags: bool) -> list[Part]:
    """Text and image parts of the whole conversation, never empty.

    System and developer messages are not in it: they belong to the instructions. With `guard_tags`, tags inside the
    texts are escaped, so that the model is not shown a foreign well-formed call.
    """
    parts: list[Part] = []
    lines: list[str] = []

    def say(label: str, said: Iterable[Part], close: str = "") -> None:
        pending = label
        for part in said:
            if isinstance(part, Text):
                lines.append(pending + (neutralise(part.text) if guard_tags else part.text))
                pending = ""
            else:
                if pending:
                    lines.append(pending.rstrip())
                    pending = ""
                cut(part)
        if pending:
            lines.append(pending.rstrip() if not close else pending)
        if close:
            if lines:
                lines[-1] += close
            else:
                lines.append(close)

    def cut(image: Image) -> None:
        if lines:
            parts.append(Text("\n".join(lines)))
            lines.clear()
        parts.append(image)

    for item in items:
        if isinstance(item, Message):
            if item.role in ("user", "assistant"):
                say(f"[{item.role}] ", item.parts)
        elif isinstance(item, FunctionCall):
            arguments = _guard(arguments_of(item.arguments) if item.custom else item.arguments, guard_tags)
            lines.append(f"[function_call call_id={item.call_id} name={item.full_name} arguments={arguments}]")
        elif isinstance(item, FunctionOutput):
            say(f"[function_call_output call_id={item.call_id} output=", item.parts, close="]")
        elif isinstance(item, RawItem) and item.type != "reasoning":
            lines.append(f"[{item.type} {_guard(compact_json(dict(item.data)), guard_tags)}]")
    if lines or not parts:
        parts.append(Text("\n".join(lines) or "[user]"))
    return parts


def system_texts(items: Iterable[Item], *, guard_tags: bool) -> list[str]:
    """The texts of system and developer messages, in order."""
    return [
        _guard(item.text, guard_tags)
        for item in items
        if isinstance(item, Message) and item.role in ("system", "developer") and item.text
    ]


def tool_text(turn: Turn) -> str:
    """The injected text that offers the client's tools; empty without any."""
    if turn.tool_text is not None:
        return turn.tool_text
    return build_instructions(turn.functions, turn.tool_choice, parallel=turn.parallel)


def client_instructions(turn: Turn, *, guard_tags: bool) -> str | None:
    """The client's `instructions`, guarded like every other text of its."""
    return None if turn.instructions is None else _guard(turn.instructions, guard_tags)


def _guard(text: str, guard_tags: bool) -> str:
    return neutralise(text) if guard_tags else text
