"""Requests in CAP to a bridge in front of a prompted child, and their answers without what is theirs alone."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4, uuid5

from harness import KEY, RunningBridge
from server.prompted import MODEL
from websockets.sync.client import connect

Json = dict[str, Any]
SSE, LINES, OBJECT = "text/event-stream", "application/x-ndjson", "application/json"


def assist(*steps: Json, **payload: Any) -> Json:
    """A ServiceRequest, with an id and a session of its own, whose answer is these steps."""
    meta = {"model": MODEL, **payload.pop("meta", {})}
    return {
        "request_id": str(uuid4()),
        "context": {"session_id": str(uuid4()), "user": {"id": "user-1", "name": "Ada"}},
        "payload": {"query": json.dumps(list(steps)), "meta": meta, **payload},
    }


def asked(bridge: RunningBridge, body: Json, accept: str = SSE, path: str = "assist") -> Any:
    """(status, headers, body) of an answer, with the same in place of what belongs to this one request."""
    with bridge.client() as client:
        response = client.post(path, json=body, headers={"accept": accept})
    headers = {
        name: value
        for name, value in response.headers.items()
        if name.lower() not in ("date", "x-request-id", "x-bridge-request-id", "content-length")
    }
    return response.status_code, headers, without_ids(response.text, body["request_id"])


def asked_over_socket(bridge: RunningBridge, body: Json) -> list[str]:
    """The packets of an answer over a WebSocket."""
    address = f"{bridge.root.replace('http', 'ws')}/v1/assist/ws"
    with connect(address, additional_headers={"authorization": f"Bearer {KEY}"}) as socket:
        socket.send(json.dumps(body))
        return [without_ids(str(packet), body["request_id"]) for packet in socket]


def without_ids(answer: str, request_id: str) -> str:
    """An answer with numbers for the ids that are made of the request's."""
    for number in range(1, 200):
        answer = answer.replace(str(uuid5(UUID(request_id), str(number))), f"<event {number}>")
    return answer.replace(request_id, "<request>")
