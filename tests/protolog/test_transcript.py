"""Plain JSON-RPC transcripts are read as logs: each thread in them is a request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bridge.protolog.read import RecordReader
from bridge.protolog.recording import Recording, read_recordings
from bridge.protolog.transcript import TranscriptReader, body_from_calls

Json = dict[str, Any]


def lines(*messages: tuple[str, Json]) -> list[bytes]:
    return [
        json.dumps({"t": float(at), "dir": way, "msg": message}).encode() for at, (way, message) in enumerate(messages)
    ]


def read(path: Path, *messages: tuple[str, Json]) -> list[Recording]:
    path.write_bytes(b"\n".join(lines(*messages)) + b"\n")
    return list(read_recordings(RecordReader([path])))


def begin(number: int, thread: str) -> list[tuple[str, Json]]:
    started = {"method": "thread/start", "id": number, "params": {"model": "m", "developerInstructions": "Be kind."}}
    prompt = {"type": "text", "text": f"prompt of {thread}"}
    return [
        ("out", started),
        ("in", {"id": number, "result": {"thread": {"id": thread}}}),
        ("out", {"method": "turn/start", "id": number + 1, "params": {"threadId": thread, "input": [prompt]}}),
    ]


def test_each_thread_is_a_request_of_its_own(tmp_path: Path) -> None:
    said = ("in", {"method": "item/agentMessage/delta", "params": {"threadId": "b", "delta": "x"}})
    first, second = read(tmp_path / "trace.ndjson", *begin(1, "a"), *begin(5, "b"), said)
    assert (first.id, second.id) == ("trace-1", "trace-2")
    assert second.path == "/v1/responses"
    assert second.body == {
        "model": "m",
        "input": [{"role": "user", "content": "prompt of b"}],
        "stream": True,
        "store": False,
        "instructions": "Be kind.",
    }
    assert [frame.method for frame in first.attempts[0]] == ["thread/start", "thread/start", "turn/start"]
    assert second.attempts[0][-1].payload == said[1]


def test_the_legacy_dialect_is_read_too(tmp_path: Path) -> None:
    prompt = {"type": "text", "data": {"text": "hello"}}
    (found,) = read(
        tmp_path / "old.ndjson",
        ("out", {"method": "newConversation", "id": 1, "params": {"model": "old"}}),
        ("in", {"id": 1, "result": {"conversationId": "c"}}),
        ("out", {"method": "sendUserTurn", "id": 2, "params": {"conversationId": "c", "items": [prompt]}}),
        ("in", {"id": 2, "error": {"code": -1, "message": "no"}}),
    )
    assert found.body is not None
    assert (found.body["model"], found.body["input"]) == ("old", [{"role": "user", "content": "hello"}])
    assert [frame.kind for frame in found.attempts[0]] == ["rpc_request", "rpc_response", "rpc_request", "rpc_error"]


def test_lines_of_another_kind_are_none_of_its_own() -> None:
    reader = TranscriptReader("trace")
    odd: list[Any] = [
        5,
        [],
        {},
        {"t": 1, "dir": "in"},
        {"t": "1", "dir": "in", "msg": {}},
        {"t": 1, "dir": "up", "msg": {}},
    ]
    assert [reader.record(json.dumps(entry).encode()) for entry in odd] == [None] * len(odd)
    assert reader.record(b"no json") is None
    strange = reader.record(json.dumps({"t": 1, "dir": "in", "msg": {"id": [1], "result": 5}}).encode())
    assert strange is not None
    assert strange["kind"] == "rpc_response"


def test_a_thread_without_a_prompt_has_no_request() -> None:
    assert body_from_calls([]) is None
    assert body_from_calls([{"method": "thread/start", "params": {"model": "m"}}, {"method": "turn/start"}]) is None
    assert body_from_calls([{"method": "turn/start", "params": {"input": "x"}}]) is None
