"""The bridge fetches nothing that a client names: a listener on this machine sees no connection."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from harness import RunningBridge, running_bridge
from protocols.cap.samples import request_body
from server.prompted import MODEL, prompted_codex

Json = dict[str, Any]
STEPS = json.dumps([{"text": "hi"}])


class Trap:
    """A server that only counts who comes."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.visits = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                visitor, _ = self._listener.accept()
            except OSError:
                return
            self.visits += 1
            visitor.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@contextmanager
def trapped() -> Iterator[Trap]:
    trap = Trap()
    try:
        yield trap
    finally:
        trap.close()


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    directory = tmp_path_factory.mktemp("no-fetch")
    with running_bridge(directory, CODEX_BIN=str(prompted_codex(directory)), PROXY_MODELS=MODEL) as ready:
        yield ready


def image(url: str) -> Json:
    return {"role": "user", "content": [{"type": "input_image", "image_url": url}]}


def bodies(url: str) -> list[tuple[str, Json]]:
    """Every place for an address."""
    last = {"role": "user", "content": STEPS}
    tool = {"type": "function", "name": "look", "parameters": {"$ref": url, "$schema": url, "$id": url}, "strict": True}
    past = [
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": url}]},
    ]
    files = [{"type": "input_file", "file_url": url}, {"type": "input_file", "file_id": url}]
    answers: list[Json] = [
        *({"input": [image(url), last]}, {"input": [*past, last]}),
        *({"input": [{"role": "user", "content": [part]}, last]} for part in files),
        {"input": [last], "tools": [tool]},
        {"input": [last], "tools": [{"type": "mcp", "server_label": "x", "server_url": url}]},
        {"input": [last], "text": {"format": {"type": "json_schema", "name": "x", "schema": {"$ref": url}}}},
        {"input": [last], "metadata": {"webhook": url}, "callback_url": url, "base_url": url},
        {"input": [{"type": "item_reference", "id": url}]},
        {"input": [last], "previous_response_id": url},
    ]
    found: list[tuple[str, Json]] = [("/responses", {"model": MODEL, **each}) for each in answers]
    part = {"type": "image_url", "image_url": {"url": url}}
    sound = {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}}
    found += [
        ("/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": [each]}, last]})
        for each in (part, sound, {"type": "file", "file": {"file_data": url}})
    ]
    found.append(("/assist", request_body(query=STEPS, files=[url], meta={"model": MODEL, "webhook": url})))
    return found


@pytest.mark.parametrize("scheme", ["http", "HTTPS", "ws", ""])
def test_no_address_in_a_body_is_visited(bridge: RunningBridge, scheme: str) -> None:
    """It is refused, or passed on as it is to whom it may concern; nobody here opens it."""
    with trapped() as trap, bridge.client() as client:
        url = f"{scheme}://127.0.0.1:{trap.port}/secret.png" if scheme else f"//127.0.0.1:{trap.port}/x"
        for path, body in bodies(url):
            answer = client.post(path, json=body)
            assert answer.status_code in (200, 400, 404, 422), (body, answer.text)
        headers = {"referer": url, "x-forwarded-host": f"127.0.0.1:{trap.port}", "x-callback-url": url}
        client.get("/models", headers=headers)
        assert trap.visits == 0


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "/etc/passwd", "../../etc/passwd", "file://localhost/etc/passwd", "~/.ssh/id_rsa"]
)
def test_no_file_in_a_body_is_read(bridge: RunningBridge, url: str) -> None:
    """A picture is a data URL; a path of this machine is none."""
    with bridge.client() as client:
        for path, body in bodies(url):
            answer = client.post(path, json=body)
            assert answer.status_code in (200, 400, 404, 422)
            assert "root:" not in answer.text
        refused = client.post("/responses", json={"model": MODEL, "input": [image(url)]})
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "unsupported_image_url"


def test_the_trap_works() -> None:
    """So that its silence means something."""
    with trapped() as trap:
        with pytest.raises(httpx2.HTTPError):
            httpx2.get(f"http://127.0.0.1:{trap.port}", trust_env=False)
        assert trap.visits == 1
