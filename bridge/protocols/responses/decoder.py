"""The events of a Responses stream as TurnEvents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bridge.core.events import (
    CANCELLED,
    CallBegun,
    Finished,
    ReasoningDone,
    Usage,
    UsageUpdate,
    search_action,
)
from bridge.core.items import FunctionTool
from bridge.protocols.responses.build import offered_name
from bridge.protocols.upstream import UpstreamBuffer, error_from_object, string, text_or_none

_ENDS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")


class ResponsesBuffer(UpstreamBuffer):
    """One response. `functions` are those that were offered, so that their names come back as the client wrote them.
    `seal` marks the encrypted thoughts with their owner (see `bridge.core.thoughts`).

    A call that the provider announces streams; it is complete when its item is.
    """

    def __init__(self, functions: Iterable[FunctionTool] = (), seal: Callable[[str], str] = str) -> None:
        super().__init__()
        self._seal = seal
        self._functions = {offered_name(tool): tool for tool in functions if tool.namespace is not None}
        self._arguments: dict[str, list[str]] = {}
        self._begun: dict[str, CallBegun] = {}
        """The calls in progress, by the provider's ids of their items."""
        self._done: set[str] = set()
        self._added = ""
        """The item that was added last: some events do not name theirs."""

    def receive_event(self, event: Any) -> None:
        kind = str(event["type"])
        if kind in ("response.output_text.delta", "response.refusal.delta"):
            if delta := string(event["delta"]):
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
            self._call_delta(self._id(event, "item_id"), string(event["delta"]))
        elif kind == "response.output_item.done":
            self._item_done(event["item"])
        elif kind == "response.completed":
            self._completed(event["response"])
        elif kind in ("response.incomplete", "response.cancelled"):
            self._incomplete(event["response"])
        elif kind == "response.failed":
            response = event["response"]
            self._usage(response)
            self._failed(response.get("error") or {})
        elif kind == "error":
            nested = event.get("error")
            self._failed(nested if isinstance(nested, dict) else event)
        elif kind == "response.created":
            self.answer_id = text_or_none(event["response"].get("id"))
        if kind in _ENDS:
            self.finish_reason = text_or_none(event["response"].get("status")) or kind.removeprefix("response.")

    def receive_response_or_skip(self, response: Mapping[str, Any]) -> None:
        """A whole response that was not streamed. Items of an unknown shape are counted."""
        self.answer_id = text_or_none(response.get("id"))
        output = response.get("output")
        for item in output if isinstance(output, list) else ():
            self.receive_or_skip({"type": "response.output_item.done", "item": item})
        self.finish_reason = text_or_none(response.get("status"))
        self.receive_or_skip({"type": f"response.{self.finish_reason}", "response": {**response, "output": []}})

    def _part_added(self, event: Mapping[str, Any]) -> None:
        """A part begins, usually empty. Some servers put text here, and nowhere else: it is a piece like any other."""
        part = event["part"]
        item_id, kind = self._id(event, "item_id"), part.get("type")
        if kind in ("output_text", "refusal") and (text := part.get("text", part.get("refusal"))):
            self.text(item_id, string(text))
        elif kind == "reasoning_text" and part.get("text"):
            self.reasoning(item_id, event.get("content_index", 0), part["text"], raw=True)

    def _item_added(self, item: Any) -> None:
        item = item if isinstance(item, dict) else {}
        self._added = text_or_none(item.get("id")) or text_or_none(item.get("call_id")) or ""
        kind, call_id, name = item.get("type"), text_or_none(item.get("call_id")), text_or_none(item.get("name"))
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
        # The type of the event is not the type of the error.
        self.error_object = {name: value for name, value in said.items() if value != "error"}
        self.fail(error_from_object(self.error_object))

    def _completed(self, response: Mapping[str, Any]) -> None:
        nothing_sent = not self._streamed
        for item in response.get("output") or ():
            # Some servers send an item only here. One without an id counts as sent if any item was.
            known = text_or_none(item.get("id"))
            if known not in self._done if known is not None else nothing_sent:
                self._item_done(item)
        self._usage(response)
        self.complete()

    def _incomplete(self, response: Mapping[str, Any]) -> None:
        self._usage(response)
        self.ended = True
        if response.get("status") == "cancelled":
            # The API has this status, but no event for it.
            self.finish(Finished("cancelled", reason=CANCELLED))
        else:
            reason = (response.get("incomplete_details") or {}).get("reason")
            self.finish(Finished("incomplete", reason=str(reason or "unknown")))

    def _usage(self, response: Mapping[str, Any]) -> None:
        usage = response.get("usage")
        if usage is None:
            return
        given = usage.get("input_tokens_details") or {}
        self.usage(
            UsageUpdate(
                Usage(
                    int(usage["input_tokens"]),
                    # The exec wire has it at the top level.
                    int(given.get("cached_tokens") or usage.get("cached_tokens") or 0),
                    int(usage["output_tokens"]),
                    int((usage.get("output_tokens_details") or {}).get("reasoning_tokens") or 0),
                    cache_write=int(given.get("cache_write_tokens") or 0),
                )
            )
        )

    def _item_done(self, item: Mapping[str, Any]) -> None:
        kind = item.get("type")
        item_id = self._id(item, "id")
        own_name = text_or_none(item.get("id")) or text_or_none(item.get("call_id"))
        if own_name is not None and own_name in self._done:
            # A repeated item. A repeated call would run twice.
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
            begun = self._call_begun(item, string(item["call_id"]), string(item["name"]))
            streamed = "".join(self._arguments.pop(known, ()))
        else:
            streamed = self.arguments_of(begun.id)
        self.called(begun.complete(string(whole) if whole else streamed))

    def _begun_as(self, call_id: Any) -> CallBegun | None:
        """The call with this id that has begun; some providers name an item differently each time."""
        keys = [key for key, begun in self._begun.items() if begun.call_id == call_id]
        return self._begun.pop(keys[0]) if keys else None

    def _call_begun(self, item: Mapping[str, Any], call_id: str, name: str) -> CallBegun:
        tool = self._functions.get(name)
        return CallBegun(
            text_or_none(item.get("id")) or call_id,
            call_id,
            name if tool is None else tool.name,
            text_or_none(item.get("namespace")) if tool is None else tool.namespace,
            item.get("type") == "custom_tool_call",
        )

    def _id(self, named: Mapping[str, Any], member: str, otherwise: str = "item") -> str:
        """The item of an event or an object: its own id, else that of the item that was added last."""
        return text_or_none(named.get(member)) or self._added or otherwise

    def _reasoning_done(self, item: Mapping[str, Any]) -> None:
        item_id = self._id(item, "id")
        summary = [string(part["text"]) for part in item.get("summary") or ()]
        content = [string(part["text"]) for part in item.get("content") or ()]
        encrypted = item.get("encrypted_content")
        self.reasoning_done(item_id, summary, content, more_to_come=True)
        if summary or content or encrypted or item_id in self._streamed:
            self.add(ReasoningDone(item_id, self._seal(encrypted) if isinstance(encrypted, str) else None))
