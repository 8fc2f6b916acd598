"""A secret that remains is found: in one line, in any form, and split into pieces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log.export.making import LogMaker

from bridge.log.redact import Leak, find_leaks

SECRET = "correct-horse/battery"


def leaks(path: Path, secret: str = SECRET) -> list[Leak]:
    """All leaks of a log."""
    return find_leaks(path.read_bytes().splitlines(), [secret])


def deltas(secret: str, size: int) -> list[str]:
    text = f"the word is {secret}, keep it"
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 2, 5, 8, 20])
def test_pieces_of_a_model_s_text(tmp_path: Path, size: int) -> None:
    log = LogMaker(tmp_path / "log.ndjson")
    req_id = log.turn(said=deltas(SECRET, size))
    (leak,) = leaks(log.close())
    assert (leak.req_id, leak.kind) == (req_id, "rpc_notification")
    assert leak.first is not None
    assert leak.first < leak.line
    assert f"split over lines {leak.first} to {leak.line}" in str(leak)


@pytest.mark.parametrize(
    "event",
    [
        lambda piece: {"type": "response.output_text.delta", "item_id": "m", "delta": piece},
        lambda piece: {"id": "c", "choices": [{"index": 0, "delta": {"content": piece}}]},
        lambda piece: {
            "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}}]
        },
    ],
)
def test_pieces_of_a_stream(tmp_path: Path, event: object) -> None:
    log = LogMaker(tmp_path / "log.ndjson")
    log.turn(sent=[f"data: {json.dumps(event(piece))}\n\n" for piece in deltas(SECRET, 4)])  # type: ignore[operator]
    assert len(leaks(log.close())) == 1


def test_several_events_in_one_record(tmp_path: Path) -> None:
    log = LogMaker(tmp_path / "log.ndjson")
    log.turn(sent=["".join(f"data: {json.dumps({'type': 't', 'delta': piece})}\n\n" for piece in deltas(SECRET, 4))])
    assert len(leaks(log.close())) == 1


def test_texts_of_different_items_are_not_one(tmp_path: Path) -> None:
    log = LogMaker(tmp_path / "log.ndjson")
    for item, piece in (("a", SECRET[:9]), ("b", SECRET[9:])):
        log.frame("req_1", "item/agentMessage/delta", {"itemId": item, "delta": piece})
    assert leaks(log.close()) == []


def test_two_items_at_once_are_kept_apart(tmp_path: Path) -> None:
    log = LogMaker(tmp_path / "log.ndjson")
    for piece in deltas(SECRET, 3):
        for item, said in (("a", piece), ("b", "noise")):
            log.frame("req_1", "item/agentMessage/delta", {"itemId": item, "delta": said})
    assert len(leaks(log.close())) == 1


def test_members_of_the_log_itself_are_searched(tmp_path: Path) -> None:
    """The copy does not change them, so the check must search them."""
    path = tmp_path / "log.ndjson"
    path.write_text(json.dumps({"ts": "", "mono": 1, "seq": 1, "phase": "x", "kind": SECRET, "req_id": None}) + "\n")
    assert [leak.first for leak in leaks(path)] == [None]


def test_a_fragment_may_occur_within_one_text(tmp_path: Path) -> None:
    log = LogMaker(tmp_path / "log.ndjson")
    log.turn(said=["a st", "ring of ", "ri", "ng"])
    assert len(find_leaks(log.close().read_bytes().splitlines(), [], ["ring"])) == 1


@given(secret=st.text(min_size=4, max_size=12), cuts=st.lists(st.integers(1, 5), min_size=1))
def test_any_secret_in_any_pieces(secret: str, cuts: list[int]) -> None:
    pieces, rest, at = [], f"a{secret}z", 0
    while rest:
        size = cuts[at % len(cuts)]
        pieces.append(rest[:size])
        rest, at = rest[size:], at + 1
    lines = [{"kind": "k", "req_id": "r", "payload": {"delta": piece}} for piece in pieces]
    assert find_leaks([json.dumps(line).encode() for line in lines], [secret])
