"""TurnEvents as chat completion chunks, and as a chat completion.

The role comes first, then content, reasoning and tool calls, one finish_reason, the usage chunk when asked for, and
`[DONE]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orjson import dumps

from bridge.api.sse import DONE, data_event, restart_error
from bridge.errors import BridgeError, UpstreamError
from bridge.turn.collect import Result
from bridge.turn.events import Finished, ReasoningDelta, Restarted, TextDelta, ToolCall, TurnEvent, Usage

INCOMPLETE_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}


class ChatEncoder:
    """One completion. When not `streaming`, nothing is shown before the end, so an upstream restart is forgiven."""

    def __init__(
        self,
        model: str,
        new_id: Callable[[str], str],
        *,
        created_at: int,
        include_usage: bool = False,
        streaming: bool = True,
    ) -> None:
        self.id = new_id("chatcmpl").replace("_", "-", 1)
        self.finished = False
        self.visible = False
        self.failure: BridgeError | None = None
        self._model = model
        self._created_at = created_at
        self._include_usage = include_usage
        self._streaming = streaming
        self._result = Result()
        self._calls = 0
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
        self._delta_head = self._head + b'{"index":0,"delta":{"content":'
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
        for event in events:
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
            elif isinstance(event, ToolCall):
                self._tool_call(event)
            elif isinstance(event, Restarted):
                self.visible = self._has_summary = False
                self._calls = 0
                self._reasoning_shown.clear()
                self._reasoning_part = None
            self._result.add((event,))
            if isinstance(event, Finished):
                self._finish(event)
        return self._take()

    def body(self) -> bytes:
        result = self._result
        message: dict[str, Any] = {
            "role": "assistant",
            "content": result.text or (None if result.calls else ""),
            "refusal": None,
            "annotations": [],
        }
        reasoning = "".join(self._reasoning_shown)
        if reasoning:
            message["reasoning_content"] = reasoning
        if result.calls:
            message["tool_calls"] = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in result.calls
            ]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._finish_reason}
        return dumps(
            {
                "id": self.id,
                "object": "chat.completion",
                "created": self._created_at,
                "model": self._model,
                "choices": [choice],
                "usage": usage_object(result.usage or Usage()),
                "service_tier": None,
                "system_fingerprint": None,
            }
        )

    def _reasoning(self, event: ReasoningDelta) -> None:
        # The raw reasoning repeats the summary at length; it is shown only where no summary came before.
        if event.raw and self._has_summary:
            return
        self._has_summary = self._has_summary or not event.raw
        part = (event.item, event.index, event.raw)
        between = ["\n\n"] if self._reasoning_part not in (None, part) else []
        self._reasoning_part = part
        self._reasoning_shown += [*between, *event.pieces]
        self.visible = True
        for piece in [*between, *event.pieces]:
            self._delta({"reasoning_content": piece})

    def _tool_call(self, call: ToolCall) -> None:
        self.visible = True
        index, self._calls = self._calls, self._calls + 1
        function = {"name": call.name, "arguments": ""}
        self._delta({"tool_calls": [{"index": index, "id": call.call_id, "type": "function", "function": function}]})
        self._delta({"tool_calls": [{"index": index, "function": {"arguments": call.arguments}}]})

    def _finish(self, end: Finished) -> None:
        self.finished = True
        if end.outcome in ("failed", "cancelled"):
            self.failure = end.error or UpstreamError("The turn was interrupted.", code="interrupted")
            self._out += [data_event(self.failure.body()), DONE]
            return
        if end.outcome == "incomplete":
            self._finish_reason = INCOMPLETE_REASONS.get(end.reason or "", "length")
        else:
            self._finish_reason = "tool_calls" if self._calls else "stop"
        self._delta({}, finish_reason=self._finish_reason)
        if self._include_usage:
            usage = usage_object(self._result.usage or Usage())
            self._out.append(data_event(self._chunk([]) | {"usage": usage}))
        self._out.append(DONE)

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
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        self._out.append(self._head + dumps(choice) + self._tail)

    def _take(self) -> bytes:
        out, self._out = self._out, []
        return b"".join(out)


def usage_object(usage: Usage) -> dict[str, Any]:
    """Usage in the chat spelling."""
    return {
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
