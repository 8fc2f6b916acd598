"""The harness of `play` for CAP: its requests, and calls that read packets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from harness import KEY
from play import SSE, Call, Desk, Json, Socket, headers, open_desk_of
from protocols.cap.streams import Folded

from bridge.protocols.cap import CapOptions
from bridge.protocols.cap.stream import PACKET, parse_packet

REQUEST_ID = "550e8400-e29b-41d4-a716-446655440000"


def request(query: str = "Hello", *, number: int = 0, user: str = "u1", session: str = "s1", **payload: Any) -> Json:
    """A ServiceRequest; `number` changes its id."""
    agent = payload.pop("agent", None)
    context: Json = {"session_id": session, "user": {"id": user, "name": "Ada"}}
    if agent is not None:
        context["agent"] = {"id": agent, "name": agent}
    return {
        "request_id": str(UUID(int=UUID(REQUEST_ID).int + number)),
        "context": context,
        "payload": {"query": query, **payload},
    }


def text_of(packets: list[Json]) -> str:
    """The text of packets, which must be in the order of the grammar."""
    return Folded(map(PACKET.validate_python, packets)).text


class CapCall(Call):
    """A call to /v1/assist."""

    @property
    def error(self) -> tuple[int | None, str]:
        """(status, code) of an answer that is a StreamError."""
        body = self.json
        assert set(body) <= {"code", "message", "severity", "details"}, body
        return self.status, body["code"]

    @property
    def packets(self) -> list[Json]:
        return self.events

    @property
    def text(self) -> str:
        """The text of a stream so far."""
        return text_of(self.packets)


class CapSocket(Socket):
    """A WebSocket at /v1/assist/ws."""

    @property
    def packets(self) -> list[Json]:
        """The packets so far; each is valid."""
        for message in self.messages:
            parse_packet(message)
        return [json.loads(message) for message in self.messages]


class CapDesk(Desk[CapCall, CapSocket]):
    """The application, with requests in CAP."""

    def ask(self, body: Any, accept: str | None = SSE, *, path: str = "/v1/assist", **more: Any) -> CapCall:
        """POST a request, or any bytes."""
        return self.post(path, body, accept, **more)

    def get(
        self, request_id: str = REQUEST_ID, last: str | int | None = None, *, key: str = KEY, **more: str
    ) -> CapCall:
        """GET the stream after a packet."""
        named = dict(more)
        if last is not None:
            named["last_event_id"] = last if isinstance(last, str) else f"{request_id}:{last}"
        return self.call("GET", f"/v1/assist/{request_id}", b"", headers(key, **named))

    def delete(self, request_id: str = REQUEST_ID, *, key: str = KEY) -> CapCall:
        return self.call("DELETE", f"/v1/assist/{request_id}", b"", headers(key))

    def socket(self, *messages: Any) -> CapSocket:
        return self.connect("/v1/assist/ws", *messages)


@asynccontextmanager
async def open_desk(*, options: CapOptions | None = None, **more: Any) -> AsyncIterator[CapDesk]:
    """The application over a scripted model."""
    async with open_desk_of(CapDesk, CapCall, CapSocket, cap=options or CapOptions(), **more) as desk:
        yield desk
