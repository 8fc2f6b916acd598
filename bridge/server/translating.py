"""A recorded answer in a protocol of the reader's choice, whatever it was asked in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args
from uuid import NAMESPACE_OID, UUID, uuid5

from bridge.api.cap.events import CapEncoder
from bridge.api.cap.request import parse_assist, read_request
from bridge.api.cap.rules import AssistRules
from bridge.api.chat.events import ChatEncoder
from bridge.api.responses.events import ResponsesEncoder
from bridge.api.responses.response import echo_of
from bridge.api.shape import parse_request
from bridge.api.wire.events import WireEncoder
from bridge.backends.answers import start_answer
from bridge.backends.replay.backend import ReplayBackend
from bridge.errors import BackendProtocolError, BridgeError, InvalidRequest
from bridge.protolog.names import Names
from bridge.protolog.recording import Recording
from bridge.server.cap.recorded import recorded_rules, refuse_again
from bridge.server.player import PATHS, asked_of, has_nobody
from bridge.server.replaying import why_unplayable, with_calls
from bridge.turn.events import Finished, TextDelta, ToolCall, TurnEvent
from bridge.turn.turn import Turn

Protocol = Literal["responses", "chat", "wire", "cap", "text"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)


async def translate(recording: Recording, protocol: Protocol) -> bytes:
    """What a client of this protocol would get of a recorded answer, streamed; of several choices the first.

    Raises a BridgeError for a request that was, or is now, refused.
    """
    body = asked_of(recording)
    if body is None or recording.path not in PATHS or has_nobody(recording):
        raise InvalidRequest(f"it cannot be played: {why_unplayable(recording) or 'its request is not in the log'}.")
    try:
        return await _translate(recording, body, protocol)
    except BridgeError:
        raise
    except Exception as error:
        raise BackendProtocolError(f"What its backend said cannot be understood: {error!r}") from None


async def _translate(recording: Recording, body: dict[str, Any], protocol: Protocol) -> bytes:
    names = Names(recording)
    backend = ReplayBackend(recording, new_id=names.new_id)
    asked = _read(recording, body, backend)
    stream = await start_answer(backend, replace(asked.turn, n=None, stream=True), recording.id)
    encoder = _encoder(protocol, asked, names)
    out = [encoder.begin()]
    while not encoder.finished:
        out.append(encoder.feed(await stream.next()))
    return b"".join(out)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A recorded request, in the words of all protocols."""

    turn: Turn
    body: dict[str, Any]
    """What a response repeats of it; nothing where it was asked in CAP."""
    request_id: UUID
    events: frozenset[str] = frozenset({"tool_call"})
    """The events that a client of CAP has asked for; of another client's calls all is told."""


def _read(recording: Recording, body: dict[str, Any], backend: ReplayBackend) -> _Asked:
    spoken = PATHS[recording.path]
    if spoken == "cap":
        refuse_again(recording)
        request = read_request(body)
        assist = parse_assist(request, backend.resolve, recorded_rules(AssistRules(""), recording))
        return _Asked(assist.turn, {}, request.request_id, assist.events)
    turn = parse_request(with_calls(body), spoken, backend.resolve)
    return _Asked(turn, body, uuid5(NAMESPACE_OID, recording.id))


class _LineEncoder:
    """Several lines at once, or just the text, as bytes."""

    def __init__(self, turn: Turn, names: Names, *, text: bool) -> None:
        self._wire = WireEncoder(turn.requested_model, names.new_id)
        self._text = text

    @property
    def finished(self) -> bool:
        return self._wire.finished

    def begin(self) -> bytes:
        return self._bytes(self._wire.begin(), [])

    def feed(self, events: list[TurnEvent]) -> bytes:
        return self._bytes(self._wire.feed(events), events)

    def _bytes(self, lines: list[bytes], events: list[TurnEvent]) -> bytes:
        if not self._text:
            return b"".join(line + b"\n" for line in lines)
        said = b"".join(_plain(event) for event in events)
        return said + b"\n" if self.finished else said


def _plain(event: TurnEvent) -> bytes:
    if isinstance(event, TextDelta):
        return "".join(event.pieces).encode("utf-8", "replace")
    if isinstance(event, ToolCall):
        return f"\n[call {event.name} {event.arguments}]\n".encode("utf-8", "replace")
    if isinstance(event, Finished) and event.error is not None:
        return f"\n[{event.error.code}: {event.error.message}]".encode("utf-8", "replace")
    return b""


def _encoder(protocol: Protocol, asked: _Asked, names: Names) -> Any:
    turn = asked.turn
    if protocol == "cap":
        return CapEncoder(asked.request_id, now=names.now, started_at=names.now(), form="ndjson", events=asked.events)
    if protocol == "responses":
        echo = echo_of(asked.body, turn, store=False)
        return ResponsesEncoder(echo, names.new_id, created_at=int(names.now()), now=names.now)
    if protocol == "chat":
        return ChatEncoder(turn.requested_model, names.new_id, created_at=int(names.now()), include_usage=True)
    return _LineEncoder(turn, names, text=protocol == "text")
