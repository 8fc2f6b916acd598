"""What a provider streams, byte by byte: read as events, decoded, and told to every client."""

from __future__ import annotations

from fuzz.answers import TURN, check_events
from fuzz.cutting import choice, cut

from bridge.core.events import TurnEvent
from bridge.errors import BridgeError, UpstreamError
from bridge.protocols.chat.presets import PRESETS
from bridge.upstream.backend import Api, ChatApi, MessagesApi, ResponsesApi


def read_responses_stream(data: bytes) -> None:
    """A stream of the Responses API."""
    _read(ResponsesApi(), data)


def read_anthropic(data: bytes) -> None:
    """A stream of the Messages API."""
    _read(MessagesApi(), data)


def read_chat_stream(data: bytes) -> None:
    """A stream of chat completions."""
    _read(ChatApi(PRESETS["gemini"]) if choice(data) & 128 else ChatApi(), data)


def _read(api: Api, data: bytes) -> None:
    """As the task does that owns an upstream's answer: errors of ours end it, nothing else may happen."""
    buffer = api.buffer(TURN)
    reader = buffer.reader()
    batches: list[list[TurnEvent]] = []
    try:
        for piece in cut(data[1:], choice(data)):
            for event in reader.feed(piece):
                buffer.receive(event)
            batches.append(buffer.take())
        for event in reader.finish():
            buffer.receive(event)
        buffer.over(told=reader.done)
        buffer.fail(UpstreamError("The provider's answer was cut off.", code="stream_interrupted"))
    except BridgeError as error:
        buffer.fail(error)
    batches.append(buffer.take())
    check_events([batch for batch in batches if batch], calls_in_text=False)
