"""What a backend itself said, put together again from its messages: of both dialects of the child, and of providers.

It is what was said before the bridge made anything of it: calls in text stand in the text. Whatever a message holds,
it is taken as far as it makes sense.
"""

from __future__ import annotations

from typing import Any

from bridge.protolog.answer import AnswerReader
from bridge.protolog.asked import Part, joined_text
from bridge.protolog.loose import member, objects, text_of
from bridge.protolog.recording import Recording


def heard_text(recording: Recording) -> str:
    """All that the model said, one message after the other."""
    return "\n\n".join(heard_messages(recording))


def heard_messages(recording: Recording) -> list[str]:
    """The text of each assistant message, as its backend told it. Empty where the frames are not understood."""
    found: list[str] = []
    for _, frames in sorted(recording.attempts.items()):
        heard = Heard()
        for frame in frames:
            heard.add(frame.kind, frame.payload)
        found += [part.text for part in heard.parts if part.kind == "text"]
    return found


class Heard:
    """Takes the payloads of the messages of one attempt in, in order."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], Part | list[str]] = {}
        """What the child said, by kind and item; as pieces where it came so."""
        self._events = AnswerReader()
        self._legacy = False
        self._named = False
        """Legacy: whether texts come with the ids of their items; then they come without, too."""

    @property
    def has_begun(self) -> bool:
        """Whether anything was said."""
        return bool(self._said) or self._events.has_begun

    @property
    def parts(self) -> list[Part]:
        """What was said, in the order in which it began; nothing empty."""
        child = [
            said if isinstance(said, Part) else Part("assistant", kind, "".join(said))
            for (kind, _), said in self._said.items()
        ]
        return [*child, *self._events.answer().parts]

    def add(self, kind: str, payload: Any) -> None:
        """The payload of a record of this kind."""
        if kind == "rpc_notification":
            self._notified(text_of(member(payload, "method")), member(payload, "params"))
        elif kind == "rpc_error":
            self._note("error", member(payload, "error", "message"))
        elif kind == "upstream_event":
            self._events.take(payload)

    def _notified(self, method: str, params: Any) -> None:
        if method.startswith("codex/event"):
            if not self._legacy:
                # A legacy child says everything in the words of the current dialect, too.
                self._legacy, self._said = True, {}
            self._take_legacy(member(params, "msg"))
        elif not self._legacy:
            self._take_current(method, params)

    def _take_current(self, method: str, params: Any) -> None:
        item = member(params, "item")
        if method == "item/agentMessage/delta":
            self._piece("text", member(params, "itemId"), member(params, "delta"))
        elif method in ("item/reasoning/summaryTextDelta", "item/reasoning/textDelta"):
            self._piece("reasoning", member(params, "itemId"), member(params, "delta"))
        elif method == "item/completed":
            self._whole_item(item)
        elif method == "rawResponseItem/completed":
            if member(item, "type") in ("function_call", "custom_tool_call"):
                key, given = text_of(item.get("call_id")), text_of(item.get("arguments", item.get("input")))
                self._said["call", key] = Part("assistant", "call", given, text_of(item.get("name")), key)
        elif method == "error":
            self._note("retry" if member(params, "willRetry") else "error", member(params, "error", "message"))
        elif method == "turn/completed":
            self._note("error", member(params, "turn", "error", "message"))

    def _take_legacy(self, message: Any) -> None:
        kind, item, delta = member(message, "type"), member(message, "item_id"), member(message, "delta")
        completed = member(message, "item") if kind == "item_completed" else None
        if kind == "agent_message_content_delta" or member(completed, "type") == "AgentMessage":
            self._named = True
            self._said.pop(("text", "plain"), None)
        if kind == "agent_message_content_delta":
            self._piece("text", item, delta)
        elif kind == "agent_message_delta" and not self._named:
            self._piece("text", "plain", delta)
        elif kind == "agent_message" and not self._named:
            self._whole("text", "plain", text_of(member(message, "message")))
        elif kind in ("reasoning_content_delta", "reasoning_raw_content_delta"):
            self._piece("reasoning", item, delta)
        elif kind == "item_completed":
            self._whole_item(completed)
        elif kind in ("error", "stream_error"):
            self._note("retry" if kind == "stream_error" else "error", member(message, "message"))

    def _whole_item(self, item: Any) -> None:
        """An item that is complete: it counts more than the pieces that it was told in."""
        kind, key = text_of(member(item, "type")).lower(), member(item, "id")
        if kind == "agentmessage":
            text = "".join(text_of(part.get("text")) for part in objects(item.get("content")))
            self._whole("text", key, text_of(item.get("text")) or text)
        elif kind == "reasoning":
            names = ("summary", "content", "summary_text", "raw_content")
            self._whole("reasoning", key, "\n".join(filter(None, (joined_text(item.get(name)) for name in names))))
        elif kind == "websearch":
            self._whole("search", key, text_of(item.get("query")))

    def _piece(self, kind: str, key: Any, text: Any) -> None:
        if isinstance(text, str) and text:
            said = self._said.setdefault((kind, text_of(key)), [])
            if isinstance(said, list):
                said.append(text)

    def _whole(self, kind: str, key: Any, text: str) -> None:
        if text:
            self._said[kind, text_of(key)] = Part("assistant", kind, text)

    def _note(self, kind: str, message: Any) -> None:
        """Something about the answer; once, when it is told twice in a row."""
        if isinstance(message, str) and message:
            note = Part("assistant", kind, message)
            if note != next(reversed(self._said.values()), None):
                self._said[kind, f"note {len(self._said)}"] = note
