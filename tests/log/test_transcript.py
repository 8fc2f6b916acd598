"""Plain JSON-RPC transcripts are read as logs: each turn in them is a request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli.running import run_command

from bridge.core.events import Usage
from bridge.log.log import Log
from bridge.log.read import RecordReader
from bridge.log.recording import Recording, read_recordings
from bridge.log.transcript import TranscriptReader, body_from_calls

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


def ends(thread: str) -> tuple[str, Json]:
    return ("in", {"method": "turn/completed", "params": {"threadId": thread, "turn": {"status": "completed"}}})


def counts(thread: str, total: int) -> tuple[str, Json]:
    usage = {"total": {"inputTokens": total, "outputTokens": total}}
    return ("in", {"method": "thread/tokenUsage/updated", "params": {"threadId": thread, "tokenUsage": usage}})


def prompts(number: int, thread: str, text: str, **more: Any) -> tuple[str, Json]:
    params = {"threadId": thread, "input": [{"type": "text", "text": text}], **more}
    return ("out", {"method": "turn/start", "id": number, "params": params})


def accepts(number: int) -> tuple[str, Json]:
    return ("in", {"id": number, "result": {"turn": {"id": "t"}}})


def test_each_further_turn_in_a_thread_is_a_request_of_its_own(tmp_path: Path) -> None:
    """It has the model and the instructions of its thread, and counts tokens from its own beginning."""
    first, second = read(
        tmp_path / "trace.ndjson",
        *begin(1, "a"),
        accepts(2),
        counts("a", 5),
        ends("a"),
        prompts(3, "a", "more"),
        accepts(3),
        counts("a", 9),
        ends("a"),
    )
    assert (first.id, second.id) == ("trace-1", "trace-2")
    assert second.body is not None
    assert second.body["input"] == [{"role": "user", "content": "more"}]
    assert (second.body["model"], second.body["instructions"]) == ("m", "Be kind.")
    assert (first.used, second.used) == (None, Usage(5, 0, 5))
    rows = list(Log(tmp_path / "trace.ndjson").summaries())
    assert [(row.id, row.model, row.outcome, row.input_tokens) for row in rows] == [
        ("trace-1", "m", "completed", 5),
        ("trace-2", "m", "completed", 4),
    ]


@pytest.mark.parametrize("method", ["thread/resume", "thread/fork"])
def test_a_transcript_may_begin_with_a_thread_of_before(tmp_path: Path, method: str) -> None:
    """Its model may be told by the reply alone, and what it has used when the turn has been asked for."""
    (found,) = read(
        tmp_path / "trace.ndjson",
        ("out", {"method": method, "id": 1, "params": {"threadId": "a"}}),
        ("in", {"id": 1, "result": {"thread": {"id": "b"}, "model": "m"}}),
        prompts(2, "b", "on"),
        counts("b", 5),
        accepts(2),
        counts("b", 9),
        ends("b"),
    )
    assert found.body is not None
    assert (found.body["model"], found.body["input"]) == ("m", [{"role": "user", "content": "on"}])
    assert found.used == Usage(5, 0, 5)
    (row,) = Log(tmp_path / "trace.ndjson").summaries()
    assert (row.model, row.outcome, row.input_tokens) == ("m", "completed", 4)


def test_a_transcript_may_begin_within_a_thread(tmp_path: Path) -> None:
    (found,) = read(tmp_path / "trace.ndjson", prompts(7, "a", "on", model="m"), ends("a"))
    assert found.body is not None
    assert (found.body["model"], found.body["input"]) == ("m", [{"role": "user", "content": "on"}])


def test_what_is_said_to_a_running_turn_belongs_to_it(tmp_path: Path) -> None:
    steer = {"threadId": "a", "input": [{"type": "text", "text": "faster"}]}
    (found,) = read(
        tmp_path / "trace.ndjson",
        *begin(1, "a"),
        ("out", {"method": "turn/steer", "id": 9, "params": steer}),
        prompts(10, "a", "now"),
        ends("a"),
    )
    assert found.body is not None
    assert [item["content"] for item in found.body["input"]] == ["prompt of a", "faster", "now"]


def test_a_turn_that_begins_by_itself_is_not_lost(tmp_path: Path) -> None:
    """Two prompts at once may become two turns; the second has no prompt of its own."""
    started = ("in", {"method": "turn/started", "params": {"threadId": "a", "turn": {"id": "t2"}}})
    first, second = read(tmp_path / "trace.ndjson", *begin(1, "a"), ends("a"), started, ends("a"))
    assert (first.id, second.id, second.body) == ("trace-1", "trace-2", None)
    ran = run_command("replay", tmp_path / "trace.ndjson", "--as", "text")
    assert ran.returncode == 1
    assert "trace-2: This request cannot be played: its request is not in the log." in ran.stderr


def test_a_refused_prompt_is_a_request_of_its_own(tmp_path: Path) -> None:
    refused = ("in", {"id": 2, "error": {"code": -1, "message": "no"}})
    first, second = read(tmp_path / "trace.ndjson", *begin(1, "a"), refused, prompts(3, "a", "again"), ends("a"))
    assert [frame.kind for frame in first.attempts[0]][-1] == "rpc_error"
    assert second.body is not None
    assert second.body["input"] == [{"role": "user", "content": "again"}]


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
