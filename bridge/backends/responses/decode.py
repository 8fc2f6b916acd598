"""The events of a Responses stream as TurnEvents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from bridge.backends.responses.body import offered_name
from bridge.backends.upstream.buffer import UpstreamBuffer
from bridge.backends.upstream.failures import error_from_object
from bridge.errors import UpstreamError
from bridge.turn.events import CallBegun, Finished, ReasoningDone, ToolCall, Usage, UsageUpdate
from bridge.turn.items import FunctionTool
from bridge.turn.searches import search_action


class ResponsesBuffer(UpstreamBuffer):
    """One response. `functions` are those that were offered, so that their names come back as the client wrote them.
    `seal` marks the encrypted thoughts with their owner (see `bridge.turn.thoughts`).

    A call that the provider announces streams; it is complete when its item is.
    """

    def __init__(self, functions: Iterable[FunctionTool] = (), seal: Callable[[str], str] = str) -> None:
        super().__init__()
        self._seal = seal
        self._functions = {offered_name(tool): tool for tool in functions if tool.namespace is not None}
        self._arguments: dict[str, list[str]] = {}
        self._begun: dict[str, CallBegun] = {}
        """The calls that are being made, by the ids that the provider's events have for them."""
        self._done: set[str] = set()
        self._added = ""
        """The item that was begun last: the shortest events name none."""

    def receive(self, data: bytes) -> None:
        try:
            event = orjson.loads(data)
            self._receive(str(event["type"]), event)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UpstreamError(
                "The provider sent an event that makes no sense. Try again.", code="broken_event"
            ) from None

    def _receive(self, kind: str, event: Mapping[str, Any]) -> None:
        if kind in ("response.output_text.delta", "response.refusal.delta"):
            if delta := _string(event["delta"]):
                self.text(self._id(event, "item_id"), delta)
        elif kind == "response.content_part.added":
            self._part_added(event)
        elif kind == "response.output_item.added":
            self._item_added(event.get("item"))
        elif kind == "response.reasoning_summary_text.delta":
            self.reasoning(self._id(event, "item_id"), event.get("summary_index", 0), event["delta"], raw=False)
        elif kind == "response.reasoning_text.delta":
            self.reasoning(self._id(event, "item_id"), event.get("content_index", 0), event["delta"], raw=True)
        elif kind in ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta"):
            self._call_delta(self._id(event, "item_id"), _string(event["delta"]))
        elif kind == "response.output_item.done":
            self._item_done(event["item"])
        elif kind == "response.completed":
            self._completed(event["response"])
        elif kind == "response.incomplete":
            response = event["response"]
            self._usage(response)
            reason = (response.get("incomplete_details") or {}).get("reason")
            self.ended = True
            self.finish(Finished("incomplete", reason=str(reason or "unknown")))
        elif kind == "response.failed":
            response = event["response"]
            self._usage(response)
            self._failed(response.get("error") or {})
        elif kind == "error":
            nested = event.get("error")
            self._failed(nested if isinstance(nested, dict) else event)

    def _part_added(self, event: Mapping[str, Any]) -> None:
        """A part begins, usually empty. The text that some put here, and nowhere else, is a piece like any other."""
        part = event["part"]
        item_id, kind = self._id(event, "item_id"), part.get("type")
        if kind in ("output_text", "refusal") and (text := part.get("text", part.get("refusal"))):
            self.text(item_id, _string(text))
        elif kind == "reasoning_text" and part.get("text"):
            self.reasoning(item_id, event.get("content_index", 0), part["text"], raw=True)

    def _item_added(self, item: Any) -> None:
        item = item if isinstance(item, dict) else {}
        self._added = _text(item.get("id")) or _text(item.get("call_id")) or ""
        kind, call_id, name = item.get("type"), _text(item.get("call_id")), _text(item.get("name"))
        if kind not in ("function_call", "custom_tool_call") or call_id is None or name is None:
            return
        if self._added in self._begun or self._added in self._done or call_id in self._done:
            return
        begun = self._call_begun(item, call_id, name)
        self._begun[self._added] = begun
        self.call_begun(begun)

    def _call_delta(self, item_id: str, delta: str) -> None:
        begun = self._begun.get(item_id)
        if begun is None:
            self._arguments.setdefault(item_id, []).append(delta)
        elif delta:
            self.call_delta(begun.id, delta)

    def _failed(self, said: Mapping[str, Any]) -> None:
        self.ended = True
        # The event's own type says nothing about the error.
        self.fail(error_from_object({name: value for name, value in said.items() if value != "error"}))

    def _completed(self, response: Mapping[str, Any]) -> None:
        nothing_told = not self._streamed
        for item in response.get("output") or ():
            # Some say an item only here. One without an id is taken for told when anything was.
            known = _text(item.get("id"))
            if known not in self._done if known is not None else nothing_told:
                self._item_done(item)
        self._usage(response)
        self.complete()

    def _usage(self, response: Mapping[str, Any]) -> None:
        usage = response.get("usage")
        if usage is None:
            return
        given = usage.get("input_tokens_details") or {}
        self.usage(
            UsageUpdate(
                Usage(
                    int(usage["input_tokens"]),
                    int(given.get("cached_tokens") or 0),
                    int(usage["output_tokens"]),
                    int((usage.get("output_tokens_details") or {}).get("reasoning_tokens") or 0),
                    cache_write=int(given.get("cache_write_tokens") or 0),
                )
            )
        )

    def _item_done(self, item: Mapping[str, Any]) -> None:
        kind = item.get("type")
        item_id = self._id(item, "id")
        own_name = _text(item.get("id")) or _text(item.get("call_id"))
        if own_name is not None and own_name in self._done:
            # Told once more; a call would be made once more.
            return
        self._done.add(own_name or item_id)
        if kind == "message":
            parts = [part.get("text", part.get("refusal")) for part in item.get("content") or ()]
            self.text_done(item_id, "".join(part for part in parts if isinstance(part, str)))
        elif kind in ("function_call", "custom_tool_call"):
            self._call(item, custom=kind == "custom_tool_call")
        elif kind == "reasoning":
            self._reasoning_done(item)
        elif kind == "web_search_call":
            action = item.get("action")
            self.searched(item_id, search_action(action if isinstance(action, dict) else {}))

    def _call(self, item: Mapping[str, Any], *, custom: bool) -> None:
        if item.get("status") == "incomplete":
            return  # it was cut off, and so is the response
        known = self._id(item, "id")
        begun = self._begun.pop(known, None) or self._begun_as(item.get("call_id"))
        whole = item.get("input" if custom else "arguments")
        if begun is None:
            begun = self._call_begun(item, _string(item["call_id"]), _string(item["name"]))
            streamed = "".join(self._arguments.pop(known, ()))
        else:
            streamed = self.arguments_of(begun.id)
        self.called(
            ToolCall(
                begun.id,
                begun.call_id,
                begun.name,
                _string(whole) if whole else streamed,
                namespace=begun.namespace,
                custom=begun.custom,
            )
        )

    def _begun_as(self, call_id: Any) -> CallBegun | None:
        """The call with this id that has begun; some providers name an item differently each time."""
        keys = [key for key, begun in self._begun.items() if begun.call_id == call_id]
        return self._begun.pop(keys[0]) if keys else None

    def _call_begun(self, item: Mapping[str, Any], call_id: str, name: str) -> CallBegun:
        tool = self._functions.get(name)
        return CallBegun(
            _text(item.get("id")) or call_id,
            call_id,
            name if tool is None else tool.name,
            _text(item.get("namespace")) if tool is None else tool.namespace,
            item.get("type") == "custom_tool_call",
        )

    def _id(self, named: Mapping[str, Any], member: str, otherwise: str = "item") -> str:
        """The item that an event or an object belongs to: its own id, else that of the item that was begun last."""
        return _text(named.get(member)) or self._added or otherwise

    def _reasoning_done(self, item: Mapping[str, Any]) -> None:
        item_id = self._id(item, "id")
        summary = [_string(part["text"]) for part in item.get("summary") or ()]
        content = [_string(part["text"]) for part in item.get("content") or ()]
        encrypted = item.get("encrypted_content")
        self.reasoning_done(item_id, summary, content, more_to_come=True)
        if summary or content or encrypted or item_id in self._streamed:
            self.add(ReasoningDone(item_id, self._seal(encrypted) if isinstance(encrypted, str) else None))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
