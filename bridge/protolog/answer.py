"""What a backend answered, put together again from its messages: of both dialects of the child, and of providers.

It is what was said, before the bridge made anything of it: calls in text stand in the text. Whatever a message holds,
it is taken as far as it makes sense.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from bridge.protolog.asked import dump, read_content


@dataclass(slots=True)
class Part:
    """One part of an answer. `kind`: text, reasoning, call, search, retry or error."""

    kind: str
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.pieces)


class Answer:
    """Takes the payloads of the messages of one attempt in, in order."""

    def __init__(self) -> None:
        self._parts: dict[Any, Part] = {}
        self._named = False
        """Legacy: whether texts come with the ids of their items; then they come without, too."""

    @property
    def has_begun(self) -> bool:
        """Whether anything was said."""
        return bool(self._parts)

    @property
    def parts(self) -> list[Part]:
        """What was said, in the order in which it began; nothing empty."""
        return [part for part in self._parts.values() if any(part.pieces)]

    @property
    def text(self) -> str:
        """The texts alone."""
        return "\n".join(part.text for part in self.parts if part.kind == "text")

    def add(self, kind: str, payload: Any) -> None:
        """The payload of a record of this kind."""
        if not isinstance(payload, dict):
            return
        if kind == "rpc_notification":
            method, params = payload.get("method"), payload.get("params")
            if isinstance(method, str) and isinstance(params, dict):
                if method.startswith("codex/event"):
                    self._legacy(_object(params, "msg"))
                else:
                    self._current(method, params)
        elif kind == "rpc_error":
            self._note("error", _object(payload, "error").get("message"))
        elif kind == "upstream_event":
            self._upstream(payload)

    # The child

    def _current(self, method: str, params: dict[str, Any]) -> None:
        item = params.get("itemId")
        if method == "item/agentMessage/delta":
            self._piece("text", item, params.get("delta"))
        elif method in ("item/reasoning/summaryTextDelta", "item/reasoning/textDelta"):
            self._piece("reasoning", item, params.get("delta"))
        elif method == "item/completed":
            self._whole_item(_object(params, "item"))
        elif method == "rawResponseItem/completed":
            raw = _object(params, "item")
            if raw.get("type") in ("function_call", "custom_tool_call"):
                self._call(raw.get("call_id"), raw)
        elif method == "error":
            kind = "retry" if params.get("willRetry") else "error"
            self._note(kind, _object(params, "error").get("message"))
        elif method == "turn/completed":
            self._note("error", _object(_object(params, "turn"), "error").get("message"))

    def _legacy(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind == "agent_message_content_delta":
            self._named = True
            self._parts.pop(("text", "plain"), None)
            self._piece("text", message.get("item_id"), message.get("delta"))
        elif kind == "agent_message_delta" and not self._named:
            self._piece("text", "plain", message.get("delta"))
        elif kind == "agent_message" and not self._named:
            self._whole("text", "plain", message.get("message"))
        elif kind in ("reasoning_content_delta", "reasoning_raw_content_delta"):
            self._piece("reasoning", message.get("item_id"), message.get("delta"))
        elif kind == "item_completed":
            self._whole_item(_object(message, "item"))
        elif kind in ("error", "stream_error"):
            self._note("retry" if kind == "stream_error" else "error", message.get("message"))

    def _whole_item(self, item: dict[str, Any]) -> None:
        """An item that is complete: it counts where it was not told in pieces."""
        kind = str(item.get("type", "")).lower()
        if kind == "agentmessage":
            text = item.get("text")
            self._whole("text", item.get("id"), text if isinstance(text, str) else read_content(item.get("content")))
        elif kind == "reasoning":
            said = [
                part for name in ("summary", "content", "summary_text", "raw_content") for part in _list(item, name)
            ]
            self._whole("reasoning", item.get("id"), read_content(said))
        elif kind == "websearch":
            self._whole("search", item.get("id"), str(item.get("query") or ""))

    # Providers

    def _upstream(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        if isinstance(kind, str) and kind.startswith("response."):
            self._responses(kind, event)
        elif isinstance(event.get("choices"), list):
            for choice in event["choices"]:
                if isinstance(choice, dict):
                    self._chat(choice)
        elif isinstance(kind, str) and kind.startswith("content_block"):
            self._anthropic(event)
        if isinstance(event.get("error"), dict):
            self._note("error", event["error"].get("message"))

    def _responses(self, kind: str, event: dict[str, Any]) -> None:
        item = event.get("item_id")
        if kind == "response.output_text.delta":
            self._piece("text", item, event.get("delta"))
        elif kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            self._piece("reasoning", item, event.get("delta"))
        elif kind == "response.output_item.done":
            self._output_item(_object(event, "item"))
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            response = _object(event, "response")
            for each in _list(response, "output"):
                if isinstance(each, dict):
                    self._output_item(each)
            self._note("error", _object(response, "error").get("message"))

    def _output_item(self, item: dict[str, Any]) -> None:
        kind = item.get("type")
        if kind == "message":
            self._whole("text", item.get("id"), read_content(item.get("content")))
        elif kind == "reasoning":
            said = [*_list(item, "summary"), *_list(item, "content")]
            self._whole("reasoning", item.get("id"), read_content(said))
        elif kind in ("function_call", "custom_tool_call"):
            self._call(item.get("call_id"), item)

    def _chat(self, choice: dict[str, Any]) -> None:
        index = choice.get("index", 0)
        delta = choice.get("delta") or choice.get("message")
        if not isinstance(delta, dict):
            return
        for name in ("reasoning_content", "reasoning"):
            if isinstance(delta.get(name), str):
                self._piece("reasoning", index, delta[name])
                break
        self._piece("text", index, read_content(delta.get("content")))
        for call in _list(delta, "tool_calls"):
            if isinstance(call, dict):
                function = _object(call, "function")
                key = index, call.get("index", 0)
                if function.get("name") and not self._parts.get(("call", key)):
                    self._piece("call", key, f"{function['name']} ")
                self._piece("call", key, function.get("arguments"))

    def _anthropic(self, event: dict[str, Any]) -> None:
        index, delta, block = event.get("index"), _object(event, "delta"), _object(event, "content_block")
        if block.get("type") in ("tool_use", "server_tool_use"):
            given = block.get("input")
            self._piece("call", index, f"{block.get('name')} {dump(given) if given else ''}")
        self._piece("text", index, block.get("text"))
        self._piece("text", index, delta.get("text"))
        self._piece("reasoning", index, delta.get("thinking"))
        self._piece("call", index, delta.get("partial_json"))

    # Parts

    def _piece(self, kind: str, key: Any, text: Any) -> None:
        if isinstance(text, str) and text:
            self._parts.setdefault((kind, _hashable(key)), Part(kind)).pieces.append(text)

    def _whole(self, kind: str, key: Any, text: Any) -> None:
        if isinstance(text, str) and text:
            self._parts.setdefault((kind, _hashable(key)), Part(kind)).pieces = [text]

    def _call(self, key: Any, item: dict[str, Any]) -> None:
        self._whole("call", key, f"{item.get('name')} {item.get('arguments', item.get('input'))}")

    def _note(self, kind: str, message: Any) -> None:
        last = next(reversed(self._parts.values()), None)
        if isinstance(message, str) and message and not (last and last.kind == kind and last.text == message):
            self._parts[(kind, len(self._parts))] = Part(kind, [message])


def client_answer(kind: str, payload: Any, answer: Answer) -> None:
    """Give `answer` what a record of the client's side says, in the words of either endpoint."""
    for event in client_events(kind, payload):
        if isinstance(event, dict):
            if isinstance(event.get("output"), list):  # a whole response
                event = {"type": "response.completed", "response": event}
            answer.add("upstream_event", event)


def client_events(kind: str, payload: Any) -> Iterator[Any]:
    """The events in a record of the client's side: those of a piece of a stream, a body, a line."""
    if kind in ("client_json", "client_line"):
        yield payload
    elif kind == "client_sse" and isinstance(payload, str):
        for line in payload.split("\n"):
            if line.startswith("data:"):
                try:
                    yield orjson.loads(line[5:])
                except orjson.JSONDecodeError:
                    yield line[5:].strip()


def _object(value: dict[str, Any], name: str) -> dict[str, Any]:
    inner = value.get(name)
    return inner if isinstance(inner, dict) else {}


def _list(value: dict[str, Any], name: str) -> list[Any]:
    inner = value.get(name)
    return inner if isinstance(inner, list) else []


def _hashable(key: Any) -> Any:
    return key if isinstance(key, str | int | tuple | None) else repr(key)
