"""TurnEvents as chat completion chunks, and as a chat completion.

The role comes first, then content, reasoning and tool calls, one finish_reason, the usage chunk when asked for, and
`[DONE]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from orjson import dumps

from bridge.api.sse import DONE, data_event, join_events, restart_error
from bridge.errors import BridgeError, UpstreamError
from bridge.turn.collect import Result
from bridge.turn.events import (
    CallBegun,
    CallDelta,
    Finished,
    ReasoningDelta,
    Restarted,
    TextDelta,
    ToolCall,
    TurnEvent,
    Usage,
)

INCOMPLETE_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}

THINK, UNTHINK = "<think>\n", "\n</think>\n\n"

ReasoningDisplay = Literal["content", "think", "hidden"]
"""Where a model's thoughts are shown: as `reasoning_content`, between <think> tags in the text, or not at all."""


@dataclass(slots=True)
class _OpenCall:
    """A call that is being made: its number, and how many characters of its arguments were sent."""

    index: int
    custom: bool
    size: int = 0


class ChatEncoder:
    """One completion. When not `streaming`, nothing is shown before the end, so an upstream restart is forgiven.

    `functions`: the client speaks `function_call`, from before there were tools. `index` and `id` are those of one
    choice among several, which does not end the stream by itself (`end_stream`).
    """

    def __init__(
        self,
        model: str,
        new_id: Callable[[str], str],
        *,
        created_at: int,
        include_usage: bool = False,
        streaming: bool = True,
        reasoning: ReasoningDisplay = "content",
        functions: bool = False,
        index: int = 0,
        id: str | None = None,
    ) -> None:
        self.id = id or new_id("chatcmpl").replace("_", "-", 1)
        self.finished = False
        self.visible = False
        self.failure: BridgeError | None = None
        self._model = model
        self._created_at = created_at
        self._include_usage = include_usage
        self._streaming = streaming
        self._display = reasoning
        self._functions = functions
        self._index = index
        self._alone = id is None
        self._thinking = False
        self._result = Result()
        self._calls = 0
        self._open: dict[str, _OpenCall] = {}
        self._has_summary = False
        self._reasoning_shown: list[str] = []
        self._reasoning_part: tuple[str, int, bool] | None = None
        self._finish_reason: str | None = None
        self._out: list[bytes] = []
        head = dumps(self._chunk([]))
        # …"choices":[ + one choice + ]…
        start, _, end = head.partition(b'"choices":[]')
        self._head = b"data: " + start + b'"choices":['
        self._tail = b"]" + end + b"\n\n"
        self._delta_head = self._head + b'{"index":%d,"delta":{"content":' % index
        self._delta_tail = b'},"logprobs":null,"finish_reason":null}' + self._tail

    def __repr__(self) -> str:
        return f"<ChatEncoder {self.id} calls={self._calls} finished={self.finished}>"

    @property
    def usage(self) -> Usage | None:
        """The turn's usage so far."""
        return self._result.usage

    def begin(self) -> bytes:
        self._delta({"role": "assistant", "content": ""})
        return self._take()

    def feed(self, events: list[TurnEvent]) -> bytes:
        for event in self._think_aloud(events) if self._display == "think" else events:
            if self.finished:
                break
            if isinstance(event, Restarted) and self.visible and self._streaming:
                event = Finished("failed", error=restart_error(event))
            if isinstance(event, TextDelta):
                self.visible = True
                head, tail = self._delta_head, self._delta_tail
                self._out += [b"%b%b%b" % (head, dumps(piece), tail) for piece in event.pieces]
            elif isinstance(event, ReasoningDelta):
                self._reasoning(event)
            elif isinstance(event, CallDelta):
                self._call_delta(event.id, event.pieces)
            elif isinstance(event, CallBegun):
                self._begin_call(event)
            elif isinstance(event, ToolCall):
                self._tool_call(event)
            elif isinstance(event, Restarted):
                self.visible = self._has_summary = self._thinking = False
                self._calls = 0
                self._open.clear()
                self._reasoning_shown.clear()
                self._reasoning_part = None
            self._result.add((event,))
            if isinstance(event, Finished):
                self._finish(event)
        return self._take()

    def body(self) -> bytes:
        return dumps(self.completion([self.choice()], self._result.usage or Usage()))

    def choice(self) -> dict[str, Any]:
        """This completion's choice. Only after the end."""
        result, calls = self._result, self._result.begun_calls
        message: dict[str, Any] = {
            "role": "assistant",
            "content": result.text or (None if calls else ""),
            "refusal": None,
            "annotations": [],
        }
        if self._reasoning_shown:
            message["reasoning_content"] = "".join(self._reasoning_shown)
        if calls and self._functions:
            message["function_call"] = {"name": calls[0].name, "arguments": calls[0].arguments}
        elif calls:
            message["tool_calls"] = [{"id": call.call_id, **_call(call, call.arguments)} for call in calls]
        return {"index": self._index, "message": message, "logprobs": None, "finish_reason": self._finish_reason}

    def completion(self, choices: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        """The whole object with these choices."""
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": self._created_at,
            "model": self._model,
            "choices": choices,
            "usage": usage_object(usage),
            "service_tier": None,
            "system_fingerprint": None,
        }

    def _reasoning(self, event: ReasoningDelta) -> None:
        pieces = self._readable(event)
        self._reasoning_shown += pieces
        self.visible = self.visible or bool(pieces)
        for piece in pieces:
            self._delta({"reasoning_content": piece})

    def _readable(self, event: ReasoningDelta) -> list[str]:
        """What is shown of a thought, with a blank line between its parts."""
        part = (event.item, event.index, event.raw)
        # The raw reasoning repeats the summary at length; it is shown only where no summary came before.
        if self._display == "hidden" or (event.raw and self._has_summary):
            return []
        # A part begins with its first character; from then on each piece is told, however they are batched.
        if part != self._reasoning_part and not any(event.pieces):
            return []
        self._has_summary = self._has_summary or not event.raw
        between = ["\n\n"] if self._reasoning_part not in (None, part) else []
        self._reasoning_part = part
        return [*between, *event.pieces]

    def _think_aloud(self, events: list[TurnEvent]) -> Iterator[TurnEvent]:
        """The same events with the thoughts as text between tags."""
        for event in events:
            if isinstance(event, ReasoningDelta):
                pieces = self._readable(event)
                if pieces:
                    begun, self._thinking = self._thinking, True
                    yield TextDelta(event.item, pieces if begun else [THINK, *pieces])
                continue
            ends = (
                any(event.pieces)
                if isinstance(event, TextDelta)
                else isinstance(event, CallBegun | ToolCall | Restarted | Finished)
            )
            if self._thinking and ends:
                self._thinking = False
                self._reasoning_part = None
                yield TextDelta("", [UNTHINK])
            yield event

    def _begin_call(self, call: CallBegun | ToolCall) -> None:
        if self._functions and self._calls:
            return  # an old client reads one call alone
        self.visible = True
        index, self._calls = self._calls, self._calls + 1
        self._open[call.id] = _OpenCall(index, call.custom)
        if self._functions:
            self._delta({"function_call": {"name": call.name, "arguments": ""}})
        else:
            self._delta({"tool_calls": [{"index": index, "id": call.call_id, **_call(call, "")}]})

    def _call_delta(self, call_id: str, pieces: list[str]) -> None:
        opened = self._open.get(call_id)
        if opened is None:
            return
        for piece in pieces:
            opened.size += len(piece)
            if self._functions:
                self._delta({"function_call": {"arguments": piece}})
            else:
                kind, member = ("custom", "input") if opened.custom else ("function", "arguments")
                self._delta({"tool_calls": [{"index": opened.index, kind: {member: piece}}]})

    def _tool_call(self, call: ToolCall) -> None:
        opened = self._open.get(call.id)
        if opened is None:
            self._begin_call(call)
            self._call_delta(call.id, [call.arguments])
        elif rest := call.arguments[opened.size :]:
            self._call_delta(call.id, [rest])
        self._open.pop(call.id, None)

    def _finish(self, end: Finished) -> None:
        self.finished = True
        if end.outcome in ("failed", "cancelled"):
            self.failure = end.error or UpstreamError("The turn was interrupted.", code="interrupted")
            self._end_alone()
            return
        if end.outcome == "incomplete":
            self._finish_reason = INCOMPLETE_REASONS.get(end.reason or "", "length")
        else:
            called = "function_call" if self._functions else "tool_calls"
            self._finish_reason = called if self._calls else "stop"
        self._delta({}, finish_reason=self._finish_reason)
        self._end_alone()

    def _end_alone(self) -> None:
        if self._alone:
            self._out.append(self.end_stream(self.failure, self._result.usage))

    def end_stream(self, failure: BridgeError | None, usage: Usage | None) -> bytes:
        """What ends the stream of a completion: the error, or the usage where it was asked for."""
        if failure is not None:
            return data_event(failure.body()) + DONE
        if not self._include_usage:
            return DONE
        return data_event(self._chunk([]) | {"usage": usage_object(usage or Usage())}) + DONE

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk: dict[str, Any] = {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self._created_at,
            "model": self._model,
            "choices": choices,
            "system_fingerprint": None,
        }
        # With include_usage every chunk has the member, null until the last one.
        return chunk | {"usage": None} if self._include_usage else chunk

    def _delta(self, delta: dict[str, Any], finish_reason: str | None = None) -> None:
        choice = {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        self._out.append(self._head + dumps(choice) + self._tail)

    def _take(self) -> bytes:
        out, self._out = self._out, []
        return join_events(out)


def _call(call: CallBegun | ToolCall, given: str) -> dict[str, Any]:
    """A call in the form that its kind of tool has."""
    kind, member = ("custom", "input") if call.custom else ("function", "arguments")
    name = call.name if call.namespace is None else f"{call.namespace}.{call.name}"
    return {"type": kind, kind: {"name": name, member: given}}


def usage_object(usage: Usage) -> dict[str, Any]:
    """Usage in the chat spelling."""
    return {
        **({"estimated": True} if usage.estimated else {}),
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.total,
        "prompt_tokens_details": {"cached_tokens": usage.cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
