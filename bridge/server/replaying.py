"""Recorded requests, answered again in this process: the same endpoint, the same encoders, the recorded backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import time
from typing import Any, get_args

import trio

from bridge import exact_json
from bridge.api.cap.events import Form
from bridge.api.shape import parse_request
from bridge.api.wire.events import WireEncoder, error_line
from bridge.backends.answers import attempt_id
from bridge.backends.base import EventStream
from bridge.backends.replay.backend import ReplayBackend, recorded_end
from bridge.backends.toolloop import MAX_STEPS, ToolLoop
from bridge.errors import BridgeError
from bridge.http.head import Head
from bridge.http.request import Headers, Request
from bridge.ids import new_id
from bridge.protolog.compare import Comparison, compare
from bridge.protolog.names import Names
from bridge.protolog.record import Recorder
from bridge.protolog.recording import Recording
from bridge.redact import Redactor
from bridge.server.cap.endpoint import AssistEndpoint
from bridge.server.cap.recorded import refuse_again
from bridge.server.continuation import find_continuation
from bridge.server.player import PATHS, RecordedRouter, asked_of, has_nobody, play
from bridge.server.service import Service
from bridge.server.turns import TurnEndpoint
from bridge.store.memory import MemoryStore
from bridge.turn.events import Finished, ToolCall
from bridge.turn.turn import Turn

LIMIT = 60.0
"""Seconds that one answer may take: it waits for nobody."""
TIMED_OUT = "timeout"
"""What `exec` says when its --timeout is over."""


class Stage:
    """Plays the recordings of a log one after the other: what one stores, a later one may continue."""

    def __init__(self) -> None:
        self._store = MemoryStore(ttl=1e9, max_bytes=1024**3, now=time)

    async def play(self, recording: Recording) -> Comparison:
        """Answer a recorded request again, and compare."""
        why = why_unplayable(recording)
        if why is not None:
            return Comparison(recording, "not_played", (why,))
        now = Recording(recording.id, recording.file)

        def take(lines: bytes) -> None:
            for line in lines.splitlines():
                now.add(exact_json.loads(line), 0)

        # What is said now is redacted in the same way as it was then.
        recorder = Recorder(take, lambda: ("", 0.0), Redactor(), "")
        try:
            with trio.move_on_after(LIMIT) as limit:
                if recording.path == "exec":
                    await _run(recording, recorder)
                else:
                    await self._serve(recording, recorder)
        except Exception as error:
            # Whatever a log holds, the others in it are played.
            return Comparison(recording, "different", (f"it cannot be understood: {_cause(error)!r}",))
        if limit.cancelled_caught:
            return Comparison(recording, "different", (f"no end within {LIMIT:g} s",))
        if recording.status is None:
            # There was no head of an answer, as over a WebSocket: what is accepted must not be taken for another way.
            now.client = [piece for piece in now.client if piece.kind != "client_start"]
        return compare(recording, now)

    async def _serve(self, recording: Recording, recorder: Recorder) -> None:
        settings = recording.header.get("settings")
        told = settings if isinstance(settings, dict) else {}
        backend = ReplayBackend(recording, new_id=new_id)
        service = Service(
            RecordedRouter(backend),
            new_id,
            max_body=2**62,
            keepalive=LIMIT * 2,
            store=self._store,
            keeps_responses=told.get("store") != "off",
            recorder=recorder,
        )
        spoken = PATHS[recording.path]
        async with trio.open_nursery() as nursery:
            service.background = nursery
            service = replace(service, player=_One(recording))
            if spoken == "cap":
                await _assist(recording, AssistEndpoint(service))
                return
            body = _body(recording)
            if recording.start is not None and not await self._can_continue(body):
                body = with_calls(body)
            endpoint = TurnEndpoint(spoken, service)
            await endpoint(_request(recording, exact_json.dumps(body)))

    async def _can_continue(self, body: dict[str, Any]) -> bool:
        try:
            await find_continuation(self._store, "", dict(body), enabled=True)
        except BridgeError:
            return False
        return True


class _One:
    """Plays one recording, whatever is asked."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def check(self, path: str) -> None:
        pass

    def choose(self, service: Service, path: str, data: dict[str, Any]) -> Service:
        return play(service, self._recording, copies=False)


def why_unplayable(recording: Recording) -> str | None:
    """What keeps a recording from being played; None when nothing does."""
    if recording.request is None:
        return "its request is not in the log"
    if recording.path not in PATHS:
        return f"answers of {recording.path or 'this kind'} are not played"
    if recording.body is None:
        return "its body could not be read"
    if not recording.client:
        return "the log holds nothing that its client got"
    if has_nobody(recording):
        return "the mock of exec has no backend to play"
    return None


def _body(recording: Recording) -> dict[str, Any]:
    """The request; one that came over a WebSocket, which has no status, is always streamed."""
    body = dict(asked_of(recording) or {})
    known_format = recording.header.get("format")
    if recording.streamed and recording.status is None and isinstance(known_format, int) and known_format > 1:
        for name in ("stream_id", "background", "generate"):
            body.pop(name, None)
        return body | {"stream": True}
    return body


def with_calls(body: dict[str, Any]) -> dict[str, Any]:
    """The same request, with a call made up for each output whose own is in a response that is not in the log."""
    items = body.get("input")
    if not isinstance(items, list):
        return body
    outputs = [item for item in items if isinstance(item, dict) and isinstance(item.get("call_id"), str)]
    called = {item["call_id"] for item in outputs if not str(item.get("type")).endswith("_output")}
    missing = [item for item in outputs if item["call_id"] not in called]
    return body | {"input": [*map(_made_up_call, missing), *items]}


def _made_up_call(output: dict[str, Any]) -> dict[str, Any]:
    call = {"call_id": output["call_id"], "name": "unknown"}
    if output.get("type") == "custom_tool_call_output":
        return {"type": "custom_tool_call", "input": "", **call}
    return {"type": "function_call", "arguments": "{}", **call}


def _cause(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


async def _assist(recording: Recording, endpoint: AssistEndpoint) -> None:
    """A request of CAP. What its turn says is recorded as it is said, whoever reads it and by which way."""
    request, known = _request(recording), {"body": recording.body}
    asked = (recording.request or {}).get("form")
    form: Form = next((known for known in get_args(Form) if known == asked), "json")
    try:
        if asked is None:
            # It was turned away before anybody looked at how it wants its answer.
            refuse_again(recording)
        reader = endpoint.begin(request, recording.body, form, None)
    except BridgeError as error:
        endpoint.refusal(request, error, known)
        return
    while not reader.done:
        await reader.next()
    reader.close()


def _request(recording: Recording, body: bytes = b"") -> Request:
    return Request(Head("POST", recording.path, b"", b"1.1", []), _Unheard(body))


class _Unheard:
    """The channel of a request that is answered again: only the recorder listens."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def read_body(self, limit: int) -> bytes:
        return self._body

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        pass

    def start(self, status: int, headers: Headers) -> None:
        pass

    async def send(self, data: bytes, *, last: bool = False) -> None:
        await trio.lowlevel.checkpoint()


async def _run(recording: Recording, recorder: Recorder) -> None:
    """A run of `exec`, with the tools' recorded outputs."""
    names = Names(recording)
    backend = ReplayBackend(recording, new_id=names.new_id)
    encoder: WireEncoder | None = None

    def write(lines: list[bytes]) -> None:
        for line in lines:
            recorder.client_line(recording.id, line)

    try:
        assert recording.body is not None
        turn = parse_request(recording.body, "responses", backend.resolve)
        encoder = WireEncoder(turn.requested_model, names.new_id)
        stream = await _steps(recording, backend, turn)
        write(encoder.begin())
        stopped = _stopped(recording)
        while not encoder.finished:
            events = await stream.next()
            if stopped is not None and isinstance(events[-1], Finished):
                # It has not heard of this end, nor of what came with it.
                write(encoder.fail(stopped))
            else:
                write(encoder.feed(events))
    except BridgeError as error:
        write([error_line(error)] if encoder is None else encoder.fail(error))


def _stopped(recording: Recording) -> BridgeError | None:
    """What a run was told when it was stopped from outside, by a signal or its own time limit; None for others."""
    end = recorded_end(recording)
    outside = end.outcome == "cancelled" or (end.error is not None and end.error.code == TIMED_OUT)
    return end.error if outside else None


async def _steps(recording: Recording, backend: ReplayBackend, turn: Turn) -> EventStream:
    request = recording.request or {}
    outputs = request.get("tool_outputs")
    if not isinstance(outputs, dict):
        return await backend.start(turn, recording.id)
    steps = 0

    async def start(step: Turn) -> EventStream:
        nonlocal steps
        steps += 1
        return await backend.start(step, attempt_id(recording.id, steps - 1))

    async def handle(call: ToolCall) -> str:
        output = outputs.get(call.name)
        if not isinstance(output, str):
            raise LookupError(f"there is no output for {call.name}")
        return call.arguments if output == "$args" else output

    limit = request.get("max_steps")
    return ToolLoop(start, turn, handle, max_steps=limit if isinstance(limit, int) else MAX_STEPS)
