"""Turns for the encoders' tests, with their golden files in fixtures/golden.

After an intended change of an encoder, `PYTHONPATH=.:tests python tests/protocols/cases.py` writes the golden files
again: read their difference before keeping it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from bridge.core.events import (
    CANCELLED,
    Choice,
    Finished,
    ReasoningDelta,
    ReasoningDone,
    TextDelta,
    TextDone,
    ToolCall,
    TurnEvent,
    Usage,
    UsageUpdate,
    WebSearch,
)
from bridge.errors import UpstreamError
from bridge.protocols.chat.encoder import ChatEncoder, ChoicesEncoder
from bridge.protocols.client import Encoder
from bridge.protocols.messages.encoder import MessagesEncoder
from bridge.protocols.responses.encoder import ResponsesEncoder, echo_of
from bridge.protocols.responses.request import parse_responses
from bridge.protocols.sse import DONE

GOLDEN = Path(__file__).resolve().parents[2] / "fixtures/golden"
CREATED_AT = 1_700_000_000

END = Finished("completed")
USAGE = UsageUpdate(Usage(input=20, cached=8, output=12, reasoning=5))
FIRST_CALL = ToolCall("fc_a", "call_a", "find", '{"q": "é\\n"}')
SECOND_CALL = ToolCall("fc_b", "call_b", "open", "{}")
CUSTOM_CALL = ToolCall("ctc_a", "call_c", "patch", "*** Begin\n+é", custom=True)
NAMESPACED_CALL = ToolCall("fc_c", "call_d", "find", "{}", namespace="files")
SEARCH = WebSearch("ws_1", {"type": "search", "query": "weather", "queries": ["weather"]})
CANCEL = Finished("cancelled", reason=CANCELLED)
REASONING: list[TurnEvent] = [
    ReasoningDelta("rs", 0, ["**Plan**", " first"]),
    ReasoningDelta("rs", 1, ["then"]),
    ReasoningDelta("rs", 0, ["raw"], raw=True),
    ReasoningDone("rs"),
]

CASES: dict[str, list[TurnEvent]] = {
    "text": [TextDelta("m", ["Hello", ", ", 'wörld "\n\u2028']), TextDone("m"), END],
    "text_and_call": [TextDelta("m", ["Let me ", "look."]), TextDone("m"), FIRST_CALL, END],
    "two_calls": [FIRST_CALL, SECOND_CALL, END],
    "reasoning": [*REASONING, TextDelta("m", ["42"]), TextDone("m"), END],
    "incomplete": [TextDelta("m", ["cut o"]), Finished("incomplete", reason="max_output_tokens")],
    "failed": [
        TextDelta("m", ["half"]),
        Finished("failed", error=UpstreamError("No more.", code="rate_limit_exceeded", http_status=429)),
    ],
    "usage": [TextDelta("m", ["ok"]), TextDone("m"), USAGE, END],
    "estimated_usage": [TextDelta("m", ["ok"]), UsageUpdate(Usage(3, 0, 1, estimated=True)), END],
    "custom_call": [TextDelta("m", ["Patching."]), TextDone("m"), CUSTOM_CALL, END],
    "namespaced_calls": [NAMESPACED_CALL, ToolCall("ctc_b", "call_e", "patch", "", namespace="f", custom=True), END],
    "web_search": [
        SEARCH,
        WebSearch("ws_2", {"type": "open_page", "url": "https://example.org"}),
        WebSearch("ws_3", {"type": "find_in_page", "url": "https://example.org", "pattern": "x"}),
        TextDelta("m", ["Sunny."]),
        TextDone("m"),
        END,
    ],
    "encrypted_reasoning": [
        ReasoningDelta("rs_1f", 0, ["Hm."]),
        ReasoningDone("rs_1f", "gAAAA="),
        ReasoningDone("rs_2f", "gAAAB="),
        TextDelta("m", ["42"]),
        TextDone("m"),
        END,
    ],
    "cancelled": [TextDelta("m", ["half"]), CANCEL],
}
"""Turns that both encoders tell."""

FAILURES = ("failed", "cancelled")
"""Those of them that have no body in chat."""

THOUGHTS: list[TurnEvent] = [*REASONING, TextDelta("m", ["Let me look."]), TextDone("m"), FIRST_CALL, END]

CHAT_CASES: dict[str, tuple[dict[str, Any], list[TurnEvent]]] = {
    "think": ({"reasoning": "think"}, THOUGHTS),
    "hidden": ({"reasoning": "hidden"}, THOUGHTS),
    "functions": ({"functions": True}, [TextDelta("m", ["Let me look."]), TextDone("m"), FIRST_CALL, END]),
}
"""Turns that a chat encoder tells in other ways: its options, and the events."""

CHOICES: list[TurnEvent] = [
    Choice(1, [TextDelta("m", ["One"])]),
    Choice(0, [FIRST_CALL, USAGE, END]),
    Choice(1, [TextDelta("m", [" more"]), TextDone("m"), USAGE, END]),
    END,
]
"""A turn with two choices."""


def counter() -> Callable[[str], str]:
    """Ids that count up: `msg_1`, `msg_2`, … by prefix and in order."""
    counts: dict[str, int] = {}

    def new_id(prefix: str) -> str:
        counts[prefix] = counts.get(prefix, 0) + 1
        return f"{prefix}_{counts[prefix]}"

    return new_id


def responses_encoder(*, streaming: bool = True, **members: Any) -> ResponsesEncoder:
    """An encoder with counted ids and a fixed time."""
    body = {"model": "mock-text", "input": "hi", **members}
    turn = parse_responses(body)
    return ResponsesEncoder(echo_of(body, turn), counter(), created_at=CREATED_AT, streaming=streaming)


def chat_encoder(**options: Any) -> ChatEncoder:
    """An encoder with counted ids and a fixed time."""
    return ChatEncoder("mock-text", counter(), created_at=CREATED_AT, **options)


def messages_encoder(**options: Any) -> MessagesEncoder:
    """An encoder with counted ids."""
    return MessagesEncoder("mock-text", counter(), **options)


def choices_encoder(count: int = 2, **options: Any) -> ChoicesEncoder:
    """An encoder of several choices, with a fixed time."""
    return ChoicesEncoder([chat_encoder(index=index, id="chatcmpl-1", **options) for index in range(count)])


def encode(encoder: Encoder, *batches: list[TurnEvent]) -> bytes:
    """The whole stream of these batches."""
    return encoder.begin() + b"".join(encoder.feed(batch) for batch in batches)


def read_frames(stream: bytes) -> list[dict[str, Any]]:
    """The payloads of a stream, each frame checked: an event's name is its type; `[DONE]` is left out."""
    assert stream.endswith(b"\n\n")
    payloads = []
    for frame in stream[:-2].split(b"\n\n"):
        *names, data = frame.split(b"\n")
        assert data.startswith(b"data: ")
        if data + b"\n\n" == DONE:
            assert not names
            continue
        payload = orjson.loads(data.removeprefix(b"data: "))
        assert names == ([b"event: " + payload["type"].encode()] if "type" in payload else [])
        payloads.append(payload)
    return payloads


def golden_streams() -> dict[Path, bytes]:
    """What each golden file holds, or should."""
    streams = {}
    for name, events in CASES.items():
        streams[GOLDEN / "responses" / f"{name}.sse"] = encode(responses_encoder(), events)
        streams[GOLDEN / "chat" / f"{name}.sse"] = encode(chat_encoder(include_usage="usage" in name), events)
        streams[GOLDEN / "messages" / f"{name}.sse"] = encode(messages_encoder(), events)
    for name, (options, events) in CHAT_CASES.items():
        streams[GOLDEN / "chat" / f"{name}.sse"] = encode(chat_encoder(**options), events)
    streams[GOLDEN / "chat" / "choices.sse"] = encode(choices_encoder(include_usage=True), CHOICES)
    return streams


if __name__ == "__main__":
    for path, stream in golden_streams().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(stream)
