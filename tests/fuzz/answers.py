"""What a client makes of a turn's events, whoever they come from."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from protocols.cases import CREATED_AT
from protocols.readers import ReadChat, ReadResponse

from bridge.core.collect import collect
from bridge.core.events import Finished, TurnEvent
from bridge.core.items import FunctionTool, Message, Text
from bridge.core.turn import Turn
from bridge.protocols.cap import AssistRules
from bridge.protocols.chat.encoder import ChatEncoder
from bridge.protocols.client import Encoder
from bridge.protocols.responses.encoder import ResponsesEncoder, echo_of
from bridge.tools.stage import ToolStage

MODEL = "mock-text"
TURN = Turn(
    MODEL,
    MODEL,
    (Message("user", (Text("hi"),)),),
    tools=(
        FunctionTool("look", "Looks.", {"type": "object", "properties": {"q": {"type": "string"}}}, None),
        FunctionTool("apply", "Applies.", {"type": "object", "properties": {}}, None),
    ),
    stream=True,
)
"""A turn with tools."""
RULES = AssistRules("gpt-5.2")


def check_events(batches: list[list[TurnEvent]], *, calls_in_text: bool) -> None:
    """There is one end, the last event; every client reads a whole stream in its protocol, with all that was said."""
    events = [event for batch in batches for event in batch]
    assert [isinstance(event, Finished) for event in events] == [False] * (len(events) - 1) + [True]
    if calls_in_text:
        stage = ToolStage(TURN, new_ids())
        batches = [stage.feed(list(batch)) for batch in batches]
        events = [event for batch in batches for event in batch]
    said = collect(events).text
    echo = echo_of({"model": MODEL, "input": "hi"}, TURN)
    response = ReadResponse(_stream(ResponsesEncoder(echo, new_ids(), created_at=CREATED_AT), batches))
    shown = [part["text"] for item in response.items if item["type"] == "message" for part in item["content"]]
    if response.final["status"] == "completed":
        assert "".join(shown) == said
    ReadChat(_stream(ChatEncoder(MODEL, new_ids(), created_at=CREATED_AT, include_usage=True), batches))


def new_ids() -> Callable[[str], str]:
    """Ids that no other side has: as rare as the random ones that the bridge gives."""
    numbers = count(1)
    return lambda prefix: f"{prefix}_ours{next(numbers)}"


def _stream(encoder: Encoder, batches: list[list[TurnEvent]]) -> bytes:
    stream = encoder.begin()
    for batch in batches:
        if not encoder.finished:
            stream += encoder.feed(batch)
    return stream
