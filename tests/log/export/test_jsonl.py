"""Rows: every request has the same members, and the answer is whole in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness import ROOT
from log.export.making import LogMaker, recordings

from bridge.log.export import jsonl_row

MEMBERS = [
    "id", "ts", "path", "model", "requested_model", "effort", "backend", "status", "streamed", "outcome", "reason",
    "first_event_s", "total_s", "usage", "tools", "repairs", "invalid_arguments", "request", "response_id",
    "answered_by", "text", "reasoning", "calls", "finish_reason", "choices", "error",
]  # fmt: skip


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a log."""
    lines = [jsonl_row(recording) for recording in recordings(path)]
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    return [json.loads(line) for line in lines]


def test_every_row_has_all_members(tmp_path: Path) -> None:
    log = LogMaker(tmp_path / "log.ndjson")
    log.turn(sent=[(ROOT / "fixtures/golden/responses/text_and_call.sse").read_text()])
    log.turn(answer={"error": {"message": "no"}}, status=400, outcome="failed", error={"code": "x", "message": "no"})
    log.turn(outcome=None, status=None)
    found = rows(log.close())
    assert [list(row) for row in found] == [MEMBERS] * 3
    assert [row["outcome"] for row in found] == ["completed", "failed", "unfinished"]
    assert found[1]["error"] == {"code": "x", "message": "no", "http_status": None, "type": None, "param": None}


def test_a_call_has_its_arguments_exactly_and_parsed(tmp_path: Path) -> None:
    arguments = '{"n": 12345678901234567890, "s":"é\\n"}'
    item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": arguments}
    log = LogMaker(tmp_path / "log.ndjson")
    tools = [{"type": "function", "name": "look"}, {"type": "web_search"}]
    log.turn(
        body={"tools": tools}, answer={"id": "resp_1", "object": "response", "status": "completed", "output": [item]}
    )
    (row,) = rows(log.close())
    (call,) = row["calls"]
    assert (call["id"], call["name"], call["arguments"]) == ("call_1", "look", arguments)
    assert call["parsed"]["s"] == "é\n"
    assert row["tools"] == ["look", "web_search"]


def test_choices_are_listed_only_where_there_are_several(tmp_path: Path) -> None:
    log = LogMaker(tmp_path / "log.ndjson")
    log.turn(sent=[(ROOT / "fixtures/golden/chat/choices.sse").read_text()])
    log.turn(sent=[(ROOT / "fixtures/golden/chat/text.sse").read_text()])
    many, one = rows(log.close())
    assert [choice["text"] for choice in many["choices"]] == ["", "One more"]
    assert many["calls"] == many["choices"][0]["calls"]
    assert one["choices"] is None


def test_arguments_that_are_nested_too_deeply_are_cut_off(tmp_path: Path) -> None:
    arguments = '{"a":' * 700 + "1" + "}" * 700
    item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": arguments}
    log = LogMaker(tmp_path / "log.ndjson")
    log.turn(answer={"object": "response", "status": "completed", "output": [item]})
    (row,) = rows(log.close())
    assert row["calls"][0]["arguments"] == arguments
    assert "left out" in json.dumps(row["calls"][0]["parsed"])


def test_a_transcript_has_rows_too() -> None:
    (row,) = rows(ROOT / "fixtures/traces/current_0.166.0_text.ndjson")
    assert (row["ts"], row["answered_by"], row["status"]) == (None, "backend", None)
    assert row["text"]
