"""A WebSocket client of /v1/responses, for tests: requests out, the events of their answers in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness import KEY, RunningBridge
from protocols.open_responses import check_message
from websockets.sync.client import connect
from websockets.sync.connection import Connection

ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
Json = dict[str, Any]


class Talk:
    """One connection."""

    def __init__(self, socket: Connection) -> None:
        self.socket = socket

    def send(self, body: Json, **more: Any) -> None:
        """A `response.create` with this body."""
        self.socket.send(json.dumps({"type": "response.create", **body, **more}))

    def receive(self, timeout: float = 60) -> Json:
        """The next message, which has the specification's form."""
        message: Json = json.loads(self.socket.recv(timeout=timeout))
        check_message(message)
        return message

    def rest(self) -> list[Json]:
        """All messages up to the end of an answer."""
        messages = [self.receive()]
        while messages[-1]["type"] not in ENDS:
            messages.append(self.receive())
        return messages

    def ask(self, body: Json, **more: Any) -> Json:
        """The response that answers a request, whole; the stream that it came in must be in order."""
        self.send(body, **more)
        events = self.rest()
        assert events[-1]["type"] != "error", events[-1]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
        response: Json = events[-1]["response"]
        assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == "".join(
            part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]
        )
        return response

    def refused(self, body: Json | str | bytes, **more: Any) -> Json:
        """The error message that a request, or any other message, is answered with, and nothing before it."""
        if isinstance(body, dict):
            self.send(body, **more)
        else:
            self.socket.send(body)
        message = self.receive()
        assert message["type"] == "error", message
        assert list(message["error"]) == ["message", "type", "param", "code"]
        assert message["error"]["message"]
        return message

    def until(self, text: str) -> None:
        """Read up to the event that says this text."""
        while self.receive().get("delta") != text:
            pass


@contextmanager
def talking(bridge: RunningBridge, *, key: str | None = KEY, **options: Any) -> Iterator[Talk]:
    """A connection, closed at the end."""
    # Else the client does not read the bridge's farewell while messages are unread, and waits for it in vain.
    options.setdefault("max_queue", None)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    url = f"ws://127.0.0.1:{bridge.port}/v1/responses"
    with connect(url, additional_headers=headers, proxy=None, max_size=None, **options) as socket:
        yield Talk(socket)
