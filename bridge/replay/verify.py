"""Answer recorded requests again in this process: same endpoint, same encoders, recorded backend.

`Verifier` compares the answer with the recorded one; `translate` gives the answer in another protocol.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from time import time
from typing import Any, get_args
from uuid import NAMESPACE_OID, uuid5

import trio

from bridge import exact_json
from bridge.app.answers import start_answer
from bridge.app.continuation import find_continuation
from bridge.app.protocol_exchange import ProtocolExchange
from bridge.app.service import AnswerSettings, Service
from bridge.app.tool_loop import MAX_STEPS, answer_calls
from bridge.cap.endpoint import AssistEndpoint
from bridge.core.backend import EventStream
from bridge.core.events import Finished, TextDelta, ToolCall, TurnEvent
from bridge.errors import BackendProtocolError, BridgeError, InvalidRequest
from bridge.http.head import Head
from bridge.http.request import Headers, Request
from bridge.ids import new_id
from bridge.log.record import Recorder
from bridge.log.recording import Recording
from bridge.playback.backend import ReplayBackend, recorded_end
from bridge.playback.recorded import (
    RecordedIds,
    RecordedRouter,
    play,
    recorded_rules,
    recorded_settings,
    refuse_again,
    request_body,
    spoken_at,
    why_unplayable,
)
from bridge.protocols import registry
from bridge.protocols.cap import AssistRules
from bridge.protocols.cap.encoder import CapEncoder, Form
from bridge.protocols.cap.request import parse_assist, parse_service_request
from bridge.protocols.client import AnswerContext, Encoder
from bridge.protocols.reading import parse_request
from bridge.protocols.registry import protocol_at
from bridge.protocols.responses.encoder import RESPONSES
from bridge.protocols.wire import WireEncoder, error_line
from bridge.redact import Redactor
from bridge.replay.compare import Comparison, compare
from bridge.server.turns import Delivery
from bridge.store.sqlite import SqliteStore

LIMIT = 60.0
"""Seconds that one answer may take. It waits for no model."""
EXEC_TIMEOUT = "timeout"
"""The error code of `exec` after its --timeout."""


class Verifier:
    """Plays the recordings of a log one after the other: a later one may continue what an earlier one stored."""

    def __init__(self) -> None:
        # Its task does not run, so everything that the recordings store stays in its queue.
        self._store = SqliteStore(None, ttl=1e9, max_bytes=1024**3, max_waiting=sys.maxsize, now=time)

    async def verify(self, recording: Recording) -> Comparison:
        why = why_unplayable(recording)
        if why is None and not recording.client:
            why = "the log does not contain its client's answer"
        if why is not None:
            return Comparison(recording, "not_played", (why,))
        now = Recording(recording.id, recording.file)

        def take(lines: bytes) -> None:
            for line in lines.splitlines():
                now.add(exact_json.loads(line), 0)

        # A recorder, because the recorded answer was redacted: this one must be, in the same way.
        recorder = Recorder(take, lambda: ("", 0.0), Redactor(), "")
        try:
            with trio.move_on_after(LIMIT) as limit:
                if recording.path == "exec":
                    await _run_exec(recording, recorder)
                else:
                    await self._serve(recording, recorder)
        except Exception as error:
            # One recording that breaks our code must not keep the others from being verified.
            cause: BaseException = error
            while isinstance(cause, BaseExceptionGroup):
                cause = cause.exceptions[0]
            return Comparison(recording, "different", (f"it cannot be played: {cause!r}",))
        if limit.cancelled_caught:
            return Comparison(recording, "different", (f"no end within {LIMIT:g} s",))
        if recording.status is None:
            # The recorded answer had no HTTP head, as over a WebSocket. Without one, no update can add it.
            now.client = [piece for piece in now.client if piece.kind != "client_start"]
        return compare(recording, now)

    async def _serve(self, recording: Recording, recorder: Recorder) -> None:
        service = Service(
            RecordedRouter(ReplayBackend(recording, new_id=new_id)),
            new_id,
            max_body=2**62,
            keepalive=LIMIT * 2,
            store=self._store,
            keeps_responses=recorded_settings(recording).get("store") != "off",
            recorder=recorder,
            player=_SinglePlayer(recording),
        )
        async with trio.open_nursery() as nursery:
            service.background = nursery
            if spoken_at(recording.path) == "cap":
                await _answer_cap(recording, AssistEndpoint(service))
                return
            body = _sent_body(recording)
            if recording.start is not None:
                try:
                    await find_continuation(self._store, "", dict(body), enabled=True)
                except BridgeError:
                    body = with_calls(body)
            exchange = ProtocolExchange(service, protocol_at(recording.path) or RESPONSES, "", recording.path)
            delivery = Delivery(service, exchange, _NoClient())
            try:
                await delivery.serve(exact_json.dumps(body))
            finally:
                if not delivery.handed_over:
                    exchange.end()


class _SinglePlayer:
    """Plays one recording for every request."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def check(self, path: str) -> None:
        pass

    def choose(self, service: Service, path: str, data: dict[str, Any]) -> AnswerSettings:
        return play(service, self._recording, copies=False)


class _NoClient:
    """In place of the client of a request that is answered again: only the recorder sees the answer."""

    async def read_body(self, limit: int) -> bytes:
        return b""

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        pass

    def start(self, status: int, headers: Headers) -> None:
        pass

    async def send(self, data: bytes, *, last: bool = False) -> None:
        await trio.lowlevel.checkpoint()


def _sent_body(recording: Recording) -> dict[str, Any]:
    """The request; one that came over a WebSocket, which has no status, is always streamed."""
    body = dict(request_body(recording))
    known_format = recording.header.get("format")
    if recording.streamed and recording.status is None and isinstance(known_format, int) and known_format > 1:
        for name in ("stream_id", "background", "generate"):
            body.pop(name, None)
        return body | {"stream": True}
    return body


def with_calls(body: dict[str, Any]) -> dict[str, Any]:
    """The same request, with a made-up call for each output whose own call is in a response that the log lacks."""
    items = body.get("input")
    if not isinstance(items, list):
        return body
    outputs = [item for item in items if isinstance(item, dict) and isinstance(item.get("call_id"), str)]
    called = {item["call_id"] for item in outputs if not str(item.get("type")).endswith("_output")}
    calls: list[Any] = []
    for output in outputs:
        if output["call_id"] not in called:
            custom = output.get("type") == "custom_tool_call_output"
            call = {"type": "custom_tool_call", "input": ""} if custom else {"type": "function_call", "arguments": "{}"}
            calls.append({**call, "call_id": output["call_id"], "name": "unknown"})
    return body | {"input": [*calls, *items]}


async def _answer_cap(recording: Recording, endpoint: AssistEndpoint) -> None:
    """Answer a CAP request. The recorder gets the answer as it is made, in the recorded form."""
    request = Request(Head("POST", recording.path, b"", b"1.1", []), _NoClient())
    form = (recording.request or {}).get("form")
    known: Form = next((each for each in get_args(Form) if each == form), "json")
    try:
        if form is None:
            # It was refused before its form was chosen.
            refuse_again(recording)
        reader = endpoint.begin(request, recording.body, known, None)
    except BridgeError as error:
        endpoint.refusal(request, error, {"body": recording.body})
        return
    while not reader.done:
        await reader.next()
    reader.close()


async def _run_exec(recording: Recording, recorder: Recorder) -> None:
    """A run of `exec`, with the tools' recorded outputs."""
    names, request = RecordedIds(recording), recording.request or {}
    backend = ReplayBackend(recording, new_id=names.new_id)
    encoder: WireEncoder | None = None
    end = recorded_end(recording)
    # A run that a signal or its time limit stopped reported that, and not the end that its backend reported later.
    stopped = end.error if end.outcome == "cancelled" or (end.error and end.error.code == EXEC_TIMEOUT) else None

    def write(lines: list[bytes]) -> None:
        for line in lines:
            recorder.client_line(recording.id, line)

    try:
        turn = parse_request(recording.body or {}, "responses")
        turn = turn.for_model(backend.resolve(turn.model))
        encoder = WireEncoder(turn.requested_model, names.new_id)
        stream: EventStream
        if isinstance(outputs := request.get("tool_outputs"), dict):
            limit = request.get("max_steps")
            max_steps = limit if isinstance(limit, int) else MAX_STEPS
            stream = answer_calls(backend, turn, recording.id, outputs, max_steps=max_steps)
        else:
            stream = await backend.start(turn, recording.id)
        write(encoder.begin())
        while not encoder.finished:
            events = await stream.next()
            ends = stopped is not None and isinstance(events[-1], Finished)
            write(encoder.fail(stopped) if stopped is not None and ends else encoder.feed(events))
    except BridgeError as error:
        write([error_line(error)] if encoder is None else encoder.fail(error))


# A recorded answer in a protocol of the reader's choice

PROTOCOLS = (*registry.PROTOCOLS, "wire", "cap", "text")


async def translate(recording: Recording, protocol: str) -> bytes:
    """What a client of this protocol would get of a recorded answer, streamed; of several choices the first.

    Raises a BridgeError for a request that was, or is now, refused.
    """
    why = why_unplayable(recording)
    if why is not None:
        raise InvalidRequest(f"This request cannot be played: {why}.")
    try:
        return await _translate(recording, protocol)
    except BridgeError:
        raise
    except Exception as error:
        raise BackendProtocolError(f"The recorded answer cannot be read: {error!r}") from None


async def _translate(recording: Recording, protocol: str) -> bytes:
    names = RecordedIds(recording)
    backend = ReplayBackend(recording, new_id=names.new_id)
    body, request_id = request_body(recording), uuid5(NAMESPACE_OID, recording.id)
    events, spoken = frozenset({"tool_call"}), spoken_at(recording.path) or ""
    if spoken == "cap":
        refuse_again(recording)
        request = parse_service_request(body)
        assist = parse_assist(request, backend.resolve, recorded_rules(AssistRules(""), recording))
        turn, request_id, events = assist.turn, request.request_id, assist.events
    else:
        turn = registry.PROTOCOLS[spoken].parse(with_calls(body), ())
        turn = turn.for_model(backend.resolve(turn.model))
    turn = replace(turn, n=None, stream=True, include_usage=True)
    stream = await start_answer(backend, turn, recording.id)
    encoder: Encoder | WireEncoder
    if protocol in ("wire", "text"):
        encoder = WireEncoder(turn.requested_model, names.new_id)
    elif protocol == "cap":
        started = names.now()
        encoder = CapEncoder(request_id, now=names.now, started_at=started, form="ndjson", events=events)
    else:
        target, source = registry.PROTOCOLS[protocol], registry.PROTOCOLS.get(spoken)
        # Members that an answer repeats are only in a body of the same form.
        repeated = body if source is not None and source.form == target.form else {}
        encoder = target.make_encoder(turn, repeated, AnswerContext(names.new_id, names.now))
    out, text = [encoder.begin()], list[str]()
    while not encoder.finished:
        said = await stream.next()
        out.append(encoder.feed(said))
        text += map(_plain, said)
    if protocol == "text":
        return "".join(text).encode() + b"\n"
    return b"".join(piece if isinstance(piece, bytes) else b"\n".join([*piece, b""]) for piece in out)


def _plain(event: TurnEvent) -> str:
    text = ""
    if isinstance(event, TextDelta):
        text = "".join(event.pieces)
    elif isinstance(event, ToolCall):
        text = f"\n[call {event.name} {event.arguments}]\n"
    elif isinstance(event, Finished) and event.error is not None:
        text = f"\n[{event.error.code}: {event.error.message}]"
    return text.encode("utf-8", "replace").decode()
