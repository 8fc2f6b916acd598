"""A recorded answer in a protocol of the reader's choice, whatever it was asked in."""

from __future__ import annotations

from dataclasses import replace
from time import time
from typing import Any, Literal, get_args

from bridge.api.chat.events import ChatEncoder
from bridge.api.responses.events import ResponsesEncoder
from bridge.api.responses.response import echo_of
from bridge.api.shape import parse_request
from bridge.api.wire.events import WireEncoder
from bridge.backends.answers import start_answer
from bridge.backends.replay.backend import ReplayBackend
from bridge.errors import BackendProtocolError, BridgeError, InvalidRequest
from bridge.ids import new_id
from bridge.protolog.names import Names
from bridge.protolog.recording import Recording
from bridge.server.player import PATHS, asked_of, has_nobody
from bridge.server.replaying import why_unplayable, with_calls
from bridge.turn.events import Finished, TextDelta, ToolCall, TurnEvent
from bridge.turn.turn import Turn

Protocol = Literal["responses", "chat", "wire", "text"]
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
    names = Names(recording, new_id, time)
    backend = ReplayBackend(recording, new_id=names.new_id)
    turn = parse_request(with_calls(body), PATHS[recording.path], backend.resolve)
    stream = await start_answer(backend, replace(turn, n=None, stream=True), recording.id)
    encoder = _encoder(protocol, body, turn, names)
    out = [encoder.begin()]
    while not encoder.finished:
        out.append(encoder.feed(await stream.next()))
    return b"".join(out)


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


def _encoder(protocol: Protocol, body: dict[str, Any], turn: Turn, names: Names) -> Any:
    if protocol == "responses":
        echo = echo_of(body, turn, store=False)
        return ResponsesEncoder(echo, names.new_id, created_at=int(names.now()), now=names.now)
    if protocol == "chat":
        return ChatEncoder(turn.requested_model, names.new_id, created_at=int(names.now()), include_usage=True)
    return _LineEncoder(turn, names, text=protocol == "text")
