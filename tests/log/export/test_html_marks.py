"""Which parts of the model's text became calls, repairs and rejects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from log.export.making import LogMaker, recordings

from bridge.log.content import backend_text
from bridge.log.export.html import Stretch, marked

CALL = '<tool_call>{"name":"look","arguments":"{}"}</tool_call>'


def test_calls_repairs_and_refusals_are_marked_where_they_stand(tmp_path: Path) -> None:
    mended = "<tool_call>{...},</tool_call>"
    refused = '<tool_call>{"name":"rm"}</tool_call>'
    text = f"First {CALL}\nthen {mended} and {refused} done"
    notes: list[tuple[str, dict[str, Any]]] = [
        ("tool_call", {"name": "look", "call_id": "c1", "source": CALL}),
        ("tool_call", {"name": "look", "call_id": "c2", "source": mended}),
        ("tool_repair", {"name": "look", "repairs": ["trailing_comma"]}),
        ("tool_reject", {"reason": "unknown_tool", "source": refused}),
    ]
    log = LogMaker(tmp_path / "log.ndjson")
    log.turn(said=[text[:9], text[9:40], text[40:]], notes=notes)
    (recording,) = recordings(log.close())
    (stretches,) = marked(recording)
    assert stretches == [
        Stretch("First "),
        Stretch(CALL, "call", "look"),
        Stretch("\nthen "),
        Stretch(mended, "repair", "look: trailing_comma"),
        Stretch(" and "),
        Stretch(refused, "reject", "unknown_tool"),
        Stretch(" done"),
    ]


def test_a_note_that_fits_nowhere_hides_no_other(tmp_path: Path) -> None:
    log = LogMaker(tmp_path / "log.ndjson")
    notes = [("tool_call", {"name": "gone", "source": "not there"}), ("tool_call", {"name": "look", "source": CALL})]
    log.turn(said=["a", CALL, "z"], notes=notes)
    (recording,) = recordings(log.close())
    assert [stretch.kind for stretch in marked(recording)[0]] == ["text", "call", "text"]


def test_what_is_joined_is_what_was_said(tmp_path: Path) -> None:
    log = LogMaker(tmp_path / "log.ndjson")
    log.turn(said=["one ", CALL, CALL, " two"], notes=[("tool_call", {"name": "look", "source": CALL})] * 3)
    (recording,) = recordings(log.close())
    assert ["".join(stretch.text for stretch in each) for each in marked(recording)] == [backend_text(recording)]
