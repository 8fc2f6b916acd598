"""What the model itself said, before any tool call was taken out of it; and which of it was taken for what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bridge.protolog.export.loose import member, objects, text_of
from bridge.protolog.recording import Frame, Recording

PLAIN = "text"


@dataclass(frozen=True, slots=True)
class Stretch:
    """A piece of the model's text. `kind`: text, call, repair, or reject; `note` says more."""

    text: str
    kind: str = PLAIN
    note: str = ""


def heard_text(recording: Recording) -> str:
    """All that the model said, one message after the other."""
    return "\n\n".join(text for _, text in heard_messages(recording) if text)


def heard_messages(recording: Recording) -> list[tuple[int, str]]:
    """(attempt, text) of each assistant message, as its backend told it. Empty where the frames are not understood."""
    found: list[tuple[int, str]] = []
    for attempt, frames in sorted(recording.attempts.items()):
        found += [(attempt, text) for text in _messages(frames)]
    return found


def marked(recording: Recording) -> list[list[Stretch]]:
    """The model's messages, cut where the parser noted something. The stretches of each, joined, are its text."""
    notes = _with_repairs(recording.notes)
    out = []
    for _, text in heard_messages(recording):
        stretches: list[Stretch] = []
        at, later = 0, []
        for source, kind, note in notes:
            start = text.find(source, at)
            if start < 0:
                later.append((source, kind, note))
                continue
            if start > at:
                stretches.append(Stretch(text[at:start]))
            stretches.append(Stretch(source, kind, note))
            at = start + len(source)
        if at < len(text):
            stretches.append(Stretch(text[at:]))
        out.append(stretches)
        notes = later
    return out


def _with_repairs(notes: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, str, str]]:
    """(source, kind, note) of each note that names its text. A call's repairs are noted after it."""
    found: list[tuple[str, str, str]] = []
    for kind, payload in notes:
        source = text_of(payload.get("source"))
        named = payload.get("repairs")
        repairs = ", ".join(map(text_of, named)) if isinstance(named, list) else ""
        if kind == "tool_call" and source:
            found.append((source, "call", text_of(payload.get("name"))))
        elif kind == "tool_repair" and source:
            found.append((source, "repair", repairs))
        elif kind == "tool_repair" and found and found[-1][1] == "call":
            source, _, name = found[-1]
            found[-1] = (source, "repair", f"{name}: {repairs}")
        elif kind == "tool_reject" and source:
            found.append((source, "reject", text_of(payload.get("reason"))))
    return found


def _messages(frames: list[Frame]) -> list[str]:
    items: dict[str, list[str]] = {}
    # A legacy child says everything in the words of the current dialect, too.
    legacy = any(frame.method is not None and frame.method.startswith("codex/event/") for frame in frames)
    for frame in frames:
        if frame.direction == "in" and isinstance(frame.payload, dict):
            if frame.kind == "upstream_event":
                _upstream(frame.payload, items)
            elif legacy:
                _legacy(member(frame.payload, "params", "msg"), items)
            else:
                _current(frame.method, frame.payload.get("params"), items)
    return ["".join(pieces) for pieces in items.values()]


def _current(method: str | None, params: Any, items: dict[str, list[str]]) -> None:
    if method == "item/agentMessage/delta":
        _more(items, member(params, "itemId"), member(params, "delta"))
    elif method == "item/completed" and member(params, "item", "type") == "agentMessage":
        items[text_of(member(params, "item", "id"))] = [text_of(member(params, "item", "text"))]


def _legacy(message: Any, items: dict[str, list[str]]) -> None:
    kind, item = member(message, "type"), member(message, "item")
    if kind == "agent_message_content_delta":
        _more(items, member(message, "item_id"), member(message, "delta"))
    elif kind == "item_completed" and member(item, "type") == "AgentMessage":
        pieces = [text_of(part.get("text")) for part in objects(member(item, "content"))]
        items[text_of(member(item, "id"))] = pieces


def _upstream(event: dict[str, Any], items: dict[str, list[str]]) -> None:
    """Events of providers: the Responses API, Messages, and chat completions."""
    kind = event.get("type")
    if kind == "response.output_text.delta":
        _more(items, event.get("item_id"), event.get("delta"))
    elif kind == "content_block_delta" and member(event, "delta", "type") == "text_delta":
        _more(items, event.get("index"), member(event, "delta", "text"))
    for choice in objects(event.get("choices")):
        _more(items, choice.get("index"), member(choice, "delta", "content"))


def _more(items: dict[str, list[str]], key: Any, piece: Any) -> None:
    if isinstance(piece, str):
        items.setdefault(text_of(key), []).append(piece)
