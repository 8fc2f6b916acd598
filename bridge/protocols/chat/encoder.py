"""TurnEvents as chat completion chunks, and as a chat completion.

The role comes first, then content, reasoning and tool calls, one finish_reason, the usage chunk when asked for, and
`[DONE]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from orjson import dumps

from bridge.core.collect import Result
from bridge.core.events import (
    CallBegun,
    CallDelta,
    Choice,
    Finished,
    ReasoningDelta,
    Restarted,
    TextDelta,
    ToolCall,
    TurnEvent,
    Usage,
)
from bridge.core.items import full_name
from bridge.core.turn import Turn
from bridge.errors import BridgeError
from bridge.protocols.client import (
    AnswerContext,
    ApiDescription,
    ClientProtocol,
    Encoder,
    Json,
    NewId,
    ReasoningDisplay,
)
from bridge.protocols.dropped import dropped_fields
from bridge.protocols.reading import parse_request
from bridge.protocols.sse import DONE, data_event, interrupted, join_events, restart_error
from bridge.protocols.tooling import speaks_functions


class ChoicesEncoder:
    """Several choices in one completion: a ChatEncoder for each, with its index. They share an id and one stream."""

    def __init__(self, encoders: Sequence[ChatEncoder]) -> None:
        self._encoders = encoders
        self.finished = False
        self.failure: BridgeError | None = None

    @property
    def id(self) -> str:
        return self._encoders[0].id

    @property
    def visible(self) -> bool:
        return any(encoder.visible for encoder in self._encoders)

    @property
    def usage(self) -> Usage | None:
        known = [encoder.usage for encoder in self._encoders if encoder.usage is not None]
        return sum(known[1:], known[0]) if known else None

    def begin(self) -> bytes:
        return b"".join(encoder.begin() for encoder in self._encoders)

    def feed(self, events: list[TurnEvent]) -> bytes:
        out = []
        for event in events:
            if self.finished:
                break
            if isinstance(event, Choice):
                encoder = self._encoders[event.index]
                out.append(encoder.feed(event.events))
                if encoder.failure is not None:
                    out.append(self._finish(encoder.failure))
            elif isinstance(event, Finished):
                failed = event.outcome in ("failed", "cancelled")
                out.append(self._finish((event.error or interrupted()) if failed else None))
        return b"".join(out)

    def _finish(self, failure: BridgeError | None) -> bytes:
        """If one choice fails, all fail: the protocol has no error for a single choice."""
        self.finished = True
        self.failure = failure
        return self._encoders[0].end_stream(failure, self.usage)

    def body(self) -> bytes:
        choices = [encoder.choice() for encoder in self._encoders]
        return dumps(self._encoders[0].completion(choices, self.usage or Usage()))


INCOMPLETE_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}

THINK, UNTHINK = "<think>\n", "\n</think>\n\n"


@dataclass(slots=True)
class _OpenCall:
    """A call that is not complete: its number, and how many characters of its arguments were sent."""

    index: int
    custom: bool
    size: int = 0


class ChatEncoder:
    """One completion. If not `streaming`, nothing is sent before the end, and the upstream may restart.

    `functions`: the client uses the old `function_call` instead of tools. With `index` and `id` it is one of several
    choices, which does not end the stream itself (`end_stream`).
    """

    def __init__(
        self,
        model: str,
        new_id: NewId,
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
        start, _, end = dumps(self._chunk([])).partition(b'"choices":[]')
        self._head = b"data: " + start + b'"choices":['
        self._tail = b"]" + end + b"\n\n"
        self._delta_head = self._head + b'{"index":%d,"delta":{"content":' % index
        self._delta_tail = b'},"logprobs":null,"finish_reason":null}' + self._tail

    def __repr__(self) -> str:
        return f"<ChatEncoder {self.id} calls={self._calls} finished={self.finished}>"

    @property
    def usage(self) -> Usage | None:
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
        """The pieces of reasoning to show, with a blank line between its parts."""
        part = (event.item, event.index, event.raw)
        # Raw reasoning repeats the summary at length, so it is shown only if no summary came before.
        if self._display == "hidden" or (event.raw and self._has_summary):
            return []
        # A part begins with its first character. From then on each piece is sent, however they are batched.
        if part != self._reasoning_part and not any(event.pieces):
            return []
        self._has_summary = self._has_summary or not event.raw
        between = ["\n\n"] if self._reasoning_part not in (None, part) else []
        self._reasoning_part = part
        return [*between, *event.pieces]

    def _think_aloud(self, events: list[TurnEvent]) -> Iterator[TurnEvent]:
        """The same events with reasoning as text between tags."""
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
            return  # a client without tools reads only one call
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
            self.failure = end.error or interrupted()
        else:
            called = "function_call" if self._functions else "tool_calls"
            self._finish_reason = called if self._calls else "stop"
            if end.outcome == "incomplete":
                self._finish_reason = INCOMPLETE_REASONS.get(end.reason or "", "length")
            self._delta({}, finish_reason=self._finish_reason)
        if self._alone:
            self._out.append(self.end_stream(self.failure, self._result.usage))

    def end_stream(self, failure: BridgeError | None, usage: Usage | None) -> bytes:
        """The end of a stream: the error, or the usage if the client asked for it."""
        if failure is not None:
            return data_event(failure.body()) + DONE
        if not self._include_usage:
            return DONE
        return data_event(self._chunk([]) | {"usage": usage_object(usage or Usage())}) + DONE

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": self.id, "object": "chat.completion.chunk", "created": self._created_at, "model": self._model}
        chunk = {**head, "choices": choices, "system_fingerprint": None}
        # With include_usage every chunk has the member; it is null until the last one.
        return chunk | {"usage": None} if self._include_usage else chunk

    def _delta(self, delta: dict[str, Any], finish_reason: str | None = None) -> None:
        choice = {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        self._out.append(self._head + dumps(choice) + self._tail)

    def _take(self) -> bytes:
        out, self._out = self._out, []
        return join_events(out)


def _call(call: CallBegun | ToolCall, given: str) -> dict[str, Any]:
    """A call in the form of its kind of tool."""
    kind, member = ("custom", "input") if call.custom else ("function", "arguments")
    return {"type": kind, kind: {"name": full_name(call.namespace, call.name), member: given}}


def usage_object(usage: Usage) -> dict[str, Any]:
    """Usage as chat completions write it."""
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


def make_encoder(turn: Turn, data: Json, context: AnswerContext) -> Encoder:
    """The encoder of the answer to a body: of one completion, or of one with several choices."""
    make = partial(
        ChatEncoder,
        turn.requested_model,
        context.new_id,
        created_at=int(context.now()),
        include_usage=turn.include_usage,
        streaming=bool(turn.stream),
        reasoning=context.reasoning,
        functions=speaks_functions(data),
    )
    if turn.n is None or turn.n == 1:
        return make()
    shared = context.new_id("chatcmpl").replace("_", "-", 1)
    return ChoicesEncoder([make(index=index, id=shared) for index in range(turn.n)])


CHAT = ClientProtocol(
    "chat",
    "/v1/chat/completions",
    parse=lambda data, context: parse_request(data, "chat", context),
    make_encoder=make_encoder,
    dropped_fields=lambda data, turn, takes: dropped_fields(data, turn, "chat", takes),
    api=ApiDescription(
        tag="Chat",
        about="The chat completions API.",
        description="A completion, streamed or not.",
        operation="createChatCompletion",
        summary="Create a chat completion",
        answer="ChatCompletion",
        stream="The data of each event is a `chat.completion.chunk`: the role, then pieces of content, reasoning and "
        "calls, one `finish_reason`, the usage if it was requested, or an error. The last is `[DONE]`.",
    ),
)
