"""The content of an answer as parts for a reader: what the client got, and what the backend sent.

The protocols' own decoders read both, one event at a time. A broken event is skipped, so that a damaged log can still
be shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from bridge.appserver.current import CurrentTurn
from bridge.appserver.dialect import dialect_of
from bridge.appserver.legacy import LegacyTurn
from bridge.appserver.prompt import NativeTools
from bridge.appserver.turn import ChildSettings, RunningTurn
from bridge.core.collect import OpenCall, Output, ReasoningOutput, Result, TextOutput
from bridge.core.events import Finished, ReasoningDelta, Restarted, ToolCall, TurnEvent, WebSearch
from bridge.core.items import full_name
from bridge.core.turn import Turn
from bridge.exact_json import member, safe_dumps, text_of, try_loads
from bridge.log.record import usage_record
from bridge.log.recording import Recording
from bridge.log.request import Part, with_words
from bridge.protocols.cap.decoder import WEB_SEARCH, CapDecoder, Shown, kind_of
from bridge.protocols.chat.decoder import ChatBuffer, ChoicesBuffer
from bridge.protocols.registry import PROTOCOLS
from bridge.protocols.responses.decoder import ResponsesBuffer
from bridge.protocols.upstream import UpstreamBuffer

_TURN = Turn(model="", requested_model="", items=())
"""Decoders need the turn whose answer they decode. A log reader knows nothing about it."""
_CAP_TOKENS = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens")


@dataclass(slots=True)
class Choice:
    """One of the answers; almost always there is only one."""

    parts: list[Part] = field(default_factory=list)
    finish_reason: str | None = None

    def joined(self, kind: str) -> str:
        """All of its texts of a kind."""
        return "".join(part.text for part in self.parts if part.kind == kind)

    @property
    def calls(self) -> list[Part]:
        return [part for part in self.parts if part.kind == "call"]


@dataclass(slots=True)
class Answer:
    """The answer to a request. `source`: `client`, or `backend` where the answer did not reach the client."""

    choices: list[Choice]
    source: str = "client"
    response_id: str | None = None
    error: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None

    @property
    def parts(self) -> list[Part]:
        """The parts of every choice, then the error."""
        message = member(self.error, "message")
        failed = [Part("assistant", "error", message)] if isinstance(message, str) and message else []
        return [*(part for choice in self.choices for part in choice.parts), *failed]


def sent_values(kind: str, payload: Any) -> Iterator[Any]:
    """The values in a client_egress record: the events of a piece of a stream (else its text), a body, or a line."""
    if kind in ("client_json", "client_line"):
        yield payload
    elif kind == "client_sse" and isinstance(payload, str):
        for line in payload.split("\n"):
            # An event has its data after its name; a packet of CAP may be the line itself.
            if line.startswith(("data:", "{")):
                data = line.removeprefix("data:")
                event = try_loads(data)
                yield data.strip() if event is None else event


class AnswerReader:
    """Reads an answer of any protocol, event by event. The form of its events tells which protocol it is."""

    def __init__(self) -> None:
        self._cap: CapDecoder | None = None
        self._cap_outcome: str | None = None
        self._choices = ChoicesBuffer(lambda: ChatBuffer(None))
        self._buffer: UpstreamBuffer | None = None
        self._contents: defaultdict[int, _Content] = defaultdict(_Content)
        self._error: dict[str, Any] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the answer has any content."""
        cap = self._cap
        begun_cap = cap is not None and (cap.unfinished_thoughts or cap.error or self._cap_outcome)
        return bool(self._error or begun_cap or any(each.has_begun for each in self._contents.values()))

    def take(self, event: Any) -> None:
        """Read the next event, or the whole body. Anything but an object has no content."""
        if event == "[DONE]":
            self._choices.over(told=True)
            self._fold()
        if not isinstance(event, dict):
            return
        if kind_of(event) is not None:
            self._cap = self._cap or CapDecoder()
            for step in self._cap.feed(event):
                if isinstance(step, Finished):
                    self._cap_outcome = step.outcome
                elif part := _cap_part(step):
                    self._contents[0].insert(part)
                elif not isinstance(step, Shown | Restarted):
                    self._contents[0].add((step,))
            return
        kind = text_of(event.get("type"))
        if isinstance(event.get("choices"), list):
            self._choices.receive_or_skip(event)
            if event.get("object") == "chat.completion":
                self._choices.over(told=True)
        elif event.get("object") == "response" or isinstance(event.get("output"), list):
            self._decoder(ResponsesBuffer).receive_response_or_skip(event)
        elif (make := _maker_of(event)) is not None:
            self._decoder(make).receive_or_skip(event)
        elif kind.startswith("response.") or self._buffer is not None:
            self._decoder(ResponsesBuffer).receive_or_skip(event)
        elif kind == "error" or event.get("error"):
            given = event["error"] if isinstance(event.get("error"), dict) else event
            self._error = {name: value for name, value in given.items() if value != "error"}
        self._fold()

    def answer(self) -> Answer:
        if self._cap is not None:
            thoughts = map(_cap_part, self._cap.unfinished_thoughts)
            metrics = self._cap.metrics or {}
            usage = {name: metrics[name] for name in _CAP_TOKENS if name in metrics}
            parts = [*self._contents[0].parts, *(part for part in thoughts if part)]
            return Answer([Choice(parts, self._cap_outcome)], error=self._cap.error, usage=usage or None)
        decoders = self._decoders() or {0: ResponsesBuffer()}
        first = decoders[min(decoders)]
        return Answer(
            [Choice(self._contents[index].parts, decoder.finish_reason) for index, decoder in sorted(decoders.items())],
            response_id=first.answer_id,
            error=self._error or next((each.error_object for each in decoders.values() if each.error_object), None),
            usage=self._contents[min(self._contents)].usage,
        )

    def _decoder(self, make: Any) -> Any:
        self._buffer = self._buffer or make()
        return self._buffer

    def _decoders(self) -> dict[int, UpstreamBuffer]:
        return {0: self._buffer} if self._buffer is not None else dict(self._choices.choices)

    def _fold(self) -> None:
        for index, decoder in self._decoders().items():
            # The error is in the answer itself, as it was sent.
            self._contents[index].add(event for event in decoder.take() if not isinstance(event, Finished))


def _maker_of(event: dict[str, Any]) -> Callable[[], UpstreamBuffer] | None:
    """What makes the decoder of the protocol that recognizes an event."""
    for protocol in PROTOCOLS.values():
        if protocol.recorded is not None and protocol.recorded.begins_answer(event):
            return protocol.recorded.make_decoder
    return None


class BackendReader:
    """Reads the messages of one attempt, from a child of either dialect or from a provider.

    It shows the text before the bridge changed anything in it: calls in text stay in the text.
    """

    def __init__(self) -> None:
        self._provider = AnswerReader()
        self._child = ChildReader()
        self._content = _Content()

    @property
    def has_begun(self) -> bool:
        """Whether the answer has any content."""
        return self._content.has_begun or self._provider.has_begun

    @property
    def parts(self) -> list[Part]:
        """The content, in the order in which its parts began; nothing empty."""
        announced = _message_of(self._child.announced)
        failed = [Part("assistant", "error", announced)] if announced else []
        return [*self._content.parts, *failed, *self._provider.answer().parts]

    def add(self, kind: str, payload: Any) -> None:
        """Read the payload of a record of this kind."""
        if kind == "upstream_event":
            self._provider.take(payload)
        elif kind == "rpc_error":
            self._content.note("error", member(payload, "error", "message"))
        else:
            self._content.add(self._child.read(kind, payload))


def backend_text(recording: Recording) -> str:
    """All text of the model, one message after the other."""
    return "\n\n".join(backend_messages(recording))


def backend_messages(recording: Recording) -> list[str]:
    """The text of each assistant message, as its backend sent it. Empty where the frames are not understood."""
    return [part.text for parts in backend_answers(recording).values() for part in parts if part.kind == "text"]


def backend_answers(recording: Recording) -> dict[int, list[Part]]:
    """What the backend sent, by attempt, without those in which it sent nothing."""
    found = {}
    for attempt, frames in sorted(recording.attempts.items()):
        reader = BackendReader()
        for frame in frames:
            reader.add(frame.kind, frame.payload)
        found[attempt] = reader.parts
    return {attempt: parts for attempt, parts in found.items() if parts}


def client_answer(recording: Recording) -> Answer:
    reader = AnswerReader()
    for piece in recording.client:
        for value in sent_values(piece.kind, piece.payload):
            reader.take(value)
    return reader.answer()


class _Content:
    """Events folded into parts. Unlike a `Result`, it keeps what a restart voids."""

    def __init__(self) -> None:
        self._entries: list[Result | Part] = [Result()]
        """Results, and the parts inserted between them."""

    @property
    def has_begun(self) -> bool:
        return any(isinstance(entry, Part) or entry.outputs for entry in self._entries)

    @property
    def parts(self) -> list[Part]:
        """In the order in which they began, without empty texts."""
        parts = with_words([entry] if isinstance(entry, Part) else map(_part, entry.outputs) for entry in self._entries)
        # An error may be sent twice: when it happens, and at the end.
        return [
            part
            for before, part in pairwise([None, *parts])
            if part is not None and not (part == before and part.kind in ("retry", "error"))
        ]

    @property
    def usage(self) -> dict[str, int] | None:
        """The tokens, under the names that an export has for them."""
        results = (entry for entry in reversed(self._entries) if isinstance(entry, Result))
        used = next((result.usage for result in results if result.usage), None)
        return None if used is None else usage_record(used)

    def add(self, events: Iterable[TurnEvent]) -> None:
        for event in events:
            if isinstance(event, Restarted):
                self.note("retry", event.message)
            elif isinstance(event, Finished):
                self.note("error", _message_of(event))
            else:
                last = self._entries[-1]
                assert isinstance(last, Result)
                last.add((event,))

    def note(self, kind: str, message: Any) -> None:
        if isinstance(message, str) and message:
            self.insert(Part("assistant", kind, message))

    def insert(self, part: Part) -> None:
        """Add a part of its own: no text continues over it."""
        self._entries += [part, Result()]


def _message_of(end: Finished | None) -> str:
    """What went wrong; empty for a good end. That an answer is empty is the decoder's verdict, not the backend's."""
    if end is not None and end.outcome == "incomplete":
        return f"The answer is incomplete: {end.reason}."
    error = end.error if end is not None else None
    return error.message if error is not None and error.code != "empty_response" else ""


def _part(output: Output) -> Part:
    if isinstance(output, TextOutput):
        return Part("assistant", "text", output.text)
    if isinstance(output, ReasoningOutput):
        return Part("assistant", "reasoning", "\n".join([*output.summary_parts(), *output.content_parts()]))
    if isinstance(output, WebSearch):
        action = output.action
        return Part("assistant", "search", text_of(action.get("query") or action.get("url") or action.get("queries")))
    call = output.so_far if isinstance(output, OpenCall) else output
    return Part("assistant", "call", call.arguments, full_name(call.namespace, call.name), call.call_id)


def _cap_part(event: TurnEvent | Shown) -> Part | None:
    """The events of CAP that are a part each: a packet holds a whole thought or search, or what a client displays."""
    if isinstance(event, ReasoningDelta):
        return Part("assistant", "reasoning", "".join(event.pieces))
    if isinstance(event, WebSearch):
        return Part("assistant", "search", text_of(event.action.get("query")), WEB_SEARCH, event.item)
    if not isinstance(event, Shown):
        return None
    data = event.data
    if event.kind == "citation_block":
        return Part("assistant", "other", safe_dumps(data.get("items")).decode(), event.kind)
    return Part("assistant", "other", text_of(data.get("message") or data.get("content") or data), event.kind)


class ChildReader:
    """Reads the messages of one turn of a child, of either dialect, without a turn of our own behind it."""

    def __init__(self) -> None:
        self._turn: _Current | _Legacy | None = None

    @property
    def announced(self) -> Finished | None:
        """A failure that was announced while the end of the turn is missing."""
        return self._turn.announced if self._turn is not None else None

    def read(self, kind: str, payload: Any) -> list[TurnEvent]:
        """The events of a record of this kind."""
        if kind == "rpc_response" and isinstance(self._turn, _Current):
            self._turn.started(member(payload, "result", "turn", "id"))
        if kind not in ("rpc_request", "rpc_notification"):
            return []
        method, params = text_of(member(payload, "method")), member(payload, "params")
        if self._turn is None:
            self._turn = _Legacy() if dialect_of(method) == "legacy" else _Current()
        if kind == "rpc_notification" and isinstance(params, dict):
            # As with a live child, a notification of an unknown shape has no content.
            with suppress(KeyError, TypeError, AttributeError, ValueError):
                self._turn.receive(method, params)
        return self._turn.take()


_SETTINGS = ChildSettings(native_tools=True)
"""Codex may use all of its own tools: none of them makes an answer invalid here."""


class _AnyFunction(NativeTools):
    """Reads every call as one of the client's functions."""

    def call_of(self, item: dict[str, Any]) -> ToolCall | None:
        call_id = str(item["call_id"])
        return ToolCall(call_id, call_id, str(item["name"]), text_of(item["arguments"]))


class _Recorded(RunningTurn):
    """Keeps what a restart voids."""

    def restart(self, message: str) -> None:
        self._streamed.clear()
        self.add(Restarted(message))

    @property
    def announced(self) -> Finished | None:
        return None if self.finished else self._failure


class _Current(_Recorded, CurrentTurn):
    def __init__(self) -> None:
        super().__init__(_TURN, _SETTINGS, can_inject=True)
        self._native = _AnyFunction(())

    def started(self, turn_id: Any) -> None:
        """The reply to `turn/start`."""
        self._turn_id = turn_id if isinstance(turn_id, str) else self._turn_id


class _Legacy(_Recorded, LegacyTurn):
    def __init__(self) -> None:
        super().__init__(_TURN, _SETTINGS, sends="turn", with_searches=True)
