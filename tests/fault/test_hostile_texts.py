"""Texts that are made to break the event log break nothing."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from harness import running_bridge


@pytest.mark.parametrize("path", ["/responses", "/chat/completions", "/assist"])
def test_secrets_nested_without_end_within_a_text(tmp_path: Path, path: str) -> None:
    """The request is answered, its child lives on, and nothing is counted for ever."""
    texts = ["[" * 600, '{"password":"hunter2secret"}' + "]" * 600]
    parts = [{"type": "input_text" if path == "/responses" else "text", "text": text} for text in texts]
    body = {
        "/responses": {"model": "mock-echo", "input": [{"role": "user", "content": parts}]},
        "/chat/completions": {"model": "mock-echo", "messages": [{"role": "user", "content": parts}]},
        "/assist": {
            "request_id": "11111111-1111-4111-8111-111111111111",
            "context": {"session_id": "s", "user": {"id": "u", "name": "U"}},
            "payload": {"query": "".join(texts), "meta": {"model": "mock-echo"}},
        },
    }[path]
    log = tmp_path / "events.ndjson"
    with running_bridge(tmp_path, "--mock-only", PROXY_LOG_EVENTS=str(log)) as bridge, bridge.client() as client:
        for _ in range(2):
            assert client.post(path, json=body).status_code == 200
        running = client.get(bridge.url.removesuffix("/v1") + "/metrics").text
    records = [orjson.loads(line) for line in log.read_bytes().splitlines()]
    assert [record["kind"] for record in records].count("backend_exit") <= 1
    assert [record["kind"] for record in records].count("client_request") >= 1
    assert "turnbridge_turns_waiting 0.0" in running
