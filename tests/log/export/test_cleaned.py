"""A key that a model spells out is in no export, neither whole nor in pieces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from log.export.making import LogMaker, recordings

from bridge.log.content import backend_text
from bridge.log.export import cleaned, har_pieces, jsonl_row
from bridge.log.export.html import PageTurns
from bridge.redact import mark

KEY = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"
PIECES = ["the key ", "sk-pr", "oj-abcdef", "ghijklm", "nopqrstuvwxyz", "0123456789", " it is"]


def chunk(piece: str) -> str:
    return f"data: {json.dumps({'id': 'c', 'choices': [{'index': 0, 'delta': {'content': piece}}]})}\n\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    maker = LogMaker(tmp_path / "log.ndjson")
    maker.turn(path="/v1/chat/completions", said=PIECES, sent=[*map(chunk, PIECES), "data: [DONE]\n\n"])
    return maker.close()


def test_the_key_is_gone_from_every_piece(log: Path) -> None:
    (recording,) = recordings(log)
    clean = cleaned(recording)
    assert backend_text(clean) == f"the key {mark(KEY)} it is"
    left = json.dumps([frame.payload for frame in clean.attempts[0]] + [piece.payload for piece in clean.client])
    assert not [piece for piece in PIECES[1:-1] if piece in left.replace(mark(KEY), "")]
    assert [piece.mono for piece in clean.client] == [piece.mono for piece in recording.client]
    assert backend_text(recording) == "".join(PIECES)


def test_without_one_the_recording_stays_what_it_is(tmp_path: Path) -> None:
    maker = LogMaker(tmp_path / "log.ndjson")
    maker.turn(said=["no ", "key"], sent=[chunk("no key")])
    (recording,) = recordings(maker.close())
    assert cleaned(recording) is recording


def exported(form: str, log: Path) -> str:
    found = recordings(log)
    if form == "jsonl":
        return b"".join(map(jsonl_row, found)).decode()
    if form == "har":
        return b"".join(har_pieces(found)).decode()
    turns = PageTurns()
    turns.take(found)
    return b"".join(block for blocks in turns.blocks() for block in blocks).decode()


@pytest.mark.parametrize("form", ["jsonl", "har", "html"])
def test_no_export_holds_it(log: Path, form: str) -> None:
    told = exported(form, log)
    assert mark(KEY) in told
    assert not [piece for piece in PIECES[1:-1] if piece in told.replace(mark(KEY), "")]


def test_arguments_in_pieces_are_redacted_as_a_whole(tmp_path: Path) -> None:
    """Where a name tells that it is a secret."""
    maker = LogMaker(tmp_path / "log.ndjson")

    def call(piece: str) -> dict[str, Any]:
        return {"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"name": "x", "arguments": piece}}]}}

    pieces = ['{"pass', 'word":"hun', 'ter2"}']
    maker.turn(sent=[f"data: {json.dumps({'choices': [call(piece)]})}\n\n" for piece in pieces])
    row = json.loads(exported("jsonl", maker.close()))
    assert row["calls"][0]["parsed"]["password"] == mark("hunter2")
    assert "hunter2" not in row["calls"][0]["arguments"]
