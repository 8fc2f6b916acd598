"""How the tests of the HTTP edge ask and read, where the answer itself is not the point."""

from __future__ import annotations

import json
from typing import Any

import httpx2
from harness import read_sse
from protocols.open_responses import check_body
from real.rig import said

Json = dict[str, Any]


def create(client: httpx2.Client, given: Any, **more: Any) -> Json:
    """A whole response of the model that repeats what it is told."""
    return ok(client.post("/responses", json={"model": "mock-echo", "input": given, **more}))


def create_streamed(client: httpx2.Client, given: Any, **more: Any) -> Json:
    """The same response, from the last event of a stream."""
    body = {"model": "mock-echo", "input": given, "stream": True, **more}
    with client.stream("POST", "/responses", json=body) as response:
        assert response.status_code == 200, response.read()
        final: Json = list(read_sse(response.iter_lines()))[-1]["response"]
    return final


def ok(response: httpx2.Response) -> Json:
    """The body of an answer that is no error. A response has the specification's form."""
    assert response.status_code == 200, response.text
    body: Json = response.json()
    check_body(body)
    return body


def refusal(response: httpx2.Response, status: int) -> tuple[str, str | None]:
    """Code and param of an answer that must be an error in OpenAI's form."""
    assert response.status_code == status, response.text
    body = response.json()
    assert list(body) == ["error"]
    error = body["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert error["message"]
    return error["code"], error["param"]


def text_of(response: Json) -> str:
    """What a response object says."""
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


def texts_of(items: list[Json]) -> list[str]:
    """The texts of message items."""
    return ["".join(part["text"] for part in item["content"]) for item in items]


RECALL = said({"do": "recall"})
"""A prompt for the scripted provider: it answers with all messages that it was sent."""


def recalled(response: Json) -> list[list[str]]:
    """The roles and texts that such an answer tells."""
    messages: list[list[str]] = json.loads(text_of(response))
    return messages
