"""The archive: valid HAR 1.2, and every entry says what the log does not know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from harness import ROOT
from log.export.making import LogMaker, recordings

from bridge.log.export import har_pieces

SCHEMA = jsonschema_rs.validator_for(json.loads(Path(__file__).with_name("har.schema.json").read_text()))


def archive(path: Path) -> dict[str, Any]:
    """A log as an archive that fits the schema."""
    har: dict[str, Any] = json.loads(b"".join(har_pieces(recordings(path))))
    SCHEMA.validate(har)
    log: dict[str, Any] = har["log"]
    return log


def test_a_stream_is_a_request_and_its_answer(tmp_path: Path) -> None:
    log = LogMaker(tmp_path / "log.ndjson")
    headers = [("content-type", "text/event-stream"), ("x-request-id", "é")]
    sent = ["event: a\ndata: {}\n\n", ": keepalive\n\n", "data: [DONE]\n\n"]
    log.turn(body={"model": "mock-text", "input": "grüezi"}, sent=sent, headers=headers, said=["x"])
    (entry,) = archive(log.close())["entries"]
    assert entry["startedDateTime"] == "2026-03-01T08:00:00.000+00:00"
    assert entry["request"]["url"] == "http://localhost/v1/responses"
    assert json.loads(entry["request"]["postData"]["text"]) == {"model": "mock-text", "input": "grüezi"}
    assert entry["request"]["bodySize"] == len(entry["request"]["postData"]["text"].encode())
    assert entry["response"]["content"] == {
        "size": sum(map(len, sent)),
        "mimeType": "text/event-stream",
        "text": "".join(sent),
    }
    assert (entry["response"]["status"], entry["response"]["statusText"]) == (200, "OK")
    assert entry["response"]["headers"][1] == {"name": "x-request-id", "value": "é"}
    assert (entry["timings"]["wait"], entry["timings"]["receive"]) == (20.0, 20.0)
    assert entry["time"] == 40.0
    assert "comment" not in entry


@pytest.mark.parametrize(
    ("given", "comment"),
    [
        ({"status": None}, "the status is not in the log"),
        ({"path": "exec"}, "`turnbridge exec`, which is not an HTTP request"),
        ({"outcome": None}, "the end of the request is not in the log"),
    ],
)
def test_what_is_not_known_is_said(tmp_path: Path, given: dict[str, Any], comment: str) -> None:
    log = LogMaker(tmp_path / "log.ndjson")
    log.turn(answer={"ok": True}, **given)
    (entry,) = archive(log.close())["entries"]
    assert comment in entry["comment"]


def test_every_trace_is_an_archive() -> None:
    for trace in sorted((ROOT / "fixtures/traces").iterdir()):
        for entry in archive(trace)["entries"]:
            assert "the log does not tell when it was" in entry["comment"]


def test_an_empty_log_is_an_empty_archive(tmp_path: Path) -> None:
    assert archive(LogMaker(tmp_path / "log.ndjson").close())["entries"] == []


def test_odd_members_do_no_harm(tmp_path: Path) -> None:
    told = [
        ("http_ingress", "client_request", {"path": 3, "body": [1]}),
        ("client_egress", "client_start", {"status": "x", "headers": [1, [2, 3], ["a"]]}),
        ("client_egress", "client_json", 7),
        ("turn", "turn_end", {"outcome": 7, "error": "text", "usage": [1]}),
    ]
    head = {"ts": "never", "mono": 3, "run": "r", "direction": "in", "req_id": "req_1"}
    path = tmp_path / "log.ndjson"
    with path.open("w") as file:
        for seq, (phase, kind, payload) in enumerate(told):
            print(json.dumps(head | {"seq": seq, "phase": phase, "kind": kind, "payload": payload}), file=file)
    (entry,) = archive(path)["entries"]
    assert entry["request"]["postData"]["text"] == "[1]"
    assert entry["response"]["content"]["text"] == "7"
