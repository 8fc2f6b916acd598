"""Logs of real Codex versions in every form: nothing of an answer is missing."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema_rs
import pytest
from harness import ROOT
from log.export.making import recordings

from bridge.log.content import backend_text
from bridge.log.export import har_pieces, jsonl_row
from bridge.log.export.html import PageTurns

LOGS = sorted((ROOT / "fixtures/logs").glob("*.ndjson"))
HAR = jsonschema_rs.validator_for(json.loads(Path(__file__).with_name("har.schema.json").read_text()))


@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.stem)
def test_every_answer_is_there(log: Path) -> None:
    for recording in recordings(log):
        row = json.loads(jsonl_row(recording))
        if row["outcome"] == "completed":
            assert row["text"] or row["calls"], row["id"]
            assert row["usage"]["output_tokens"] >= 0
        elif row["outcome"] == "failed":
            assert row["error"]["code"], row["id"]
        assert [call["name"] for call in row["calls"]] == (recording.end or {}).get("calls"), row["id"]
        # What the client read, the model has said; but for what stands around reasoning.
        if row["text"] and not row["text"].startswith("<think>") and not row["choices"]:
            assert row["text"].strip() in backend_text(recording)


@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.stem)
def test_every_log_is_an_archive_and_a_page(log: Path) -> None:
    found = recordings(log)
    HAR.validate(json.loads(b"".join(har_pieces(found))))
    turns = PageTurns()
    turns.take(found)
    assert len(turns) == len(found) > 0
    assert all(json.loads(conversation)["asked"] is not None for conversation, _ in turns.blocks())
