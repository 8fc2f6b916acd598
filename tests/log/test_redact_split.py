"""Secrets that are split over records are removed from all of them, and nothing else changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.log import split_secrets
from bridge.log.redact import Remover, find_leaks
from bridge.log.split_secrets import RecordTexts, SplitSecretFinder
from bridge.redact import mark

SECRET = "abracadabra"


def delta(text: str, item: str = "m", req_id: str = "req_1") -> dict[str, Any]:
    params = {"itemId": item, "delta": text}
    return {"kind": "rpc_notification", "method": "x/delta", "req_id": req_id, "payload": {"params": params}}


def passed(records: list[dict[str, Any]], *secrets: str) -> list[dict[str, Any]]:
    finder = SplitSecretFinder(secrets)
    for number, record in enumerate(records):
        finder.feed(number, record)
    remover = Remover(secrets, split=finder.end())
    position = {"ts": "", "mono": 0, "seq": 0, "phase": "backend_io"}
    return [remover.entry(position | record, number) for number, record in enumerate(records)]


def said(records: list[dict[str, Any]], item: str = "m") -> list[str]:
    params = [record["payload"]["params"] for record in records if "params" in record["payload"]]
    return [each["delta"] for each in params if each["itemId"] == item]


def test_the_mark_is_in_the_first_piece() -> None:
    out = passed([delta(text) for text in ("say abra", "cad", "abra!", " twice")], SECRET)
    assert said(out) == [f"say {mark(SECRET)}", "", "!", " twice"]


def test_two_in_a_row_and_a_false_start() -> None:
    out = passed([delta(text) for text in ("abraabra", "cadabraabracad", "abraabracad", "abro")], SECRET)
    assert "".join(said(out)) == f"abra{mark(SECRET)}{mark(SECRET)}abracadabro"


def test_texts_of_different_items_are_not_joined() -> None:
    pairs = [("m", "abra"), ("n", "abra"), ("m", "cadabra"), ("n", "cadaver")]
    out = passed([delta(text, item) for item, text in pairs], SECRET)
    assert ("".join(said(out)), "".join(said(out, "n"))) == (mark(SECRET), "abracadaver")


def test_events_of_a_stream() -> None:
    def event(text: str) -> str:
        return f"event: e\ndata: {json.dumps({'type': 'e', 'n': 1.50, 'delta': text})}\n\n"

    sent = [event("a") + event("bra"), ": keepalive\n\n", event("cadabra") + "data: [DONE]\n\n"]
    records = [{"kind": "client_sse", "req_id": "req_1", "payload": text} for text in sent]
    out = "".join(record["payload"] for record in passed(records, SECRET))
    told = [json.loads(line[6:])["delta"] for line in out.split("\n") if line.startswith("data: {")]
    assert told == [mark(SECRET), "", ""]
    assert out.endswith("data: [DONE]\n\n")
    assert ": keepalive\n\n" in out


def test_a_secret_known_from_a_later_record_is_cut_from_earlier_ones() -> None:
    """Also where the text is so long that it is searched in parts."""
    words = [" abra", "cad", "abra "] * 3
    records = [delta(text) for text in (*words, *["x" * 100] * 30, *words)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(split_secrets, "MOST_HELD", 400)
        patched.setattr(split_secrets, "LONGEST", 50)
        out = passed(records, SECRET)
    assert "".join(said(out)).count(mark(SECRET)) == 6
    assert "abra" not in "".join(said(out))


def test_overlapping_cuts_leave_nothing_of_either() -> None:
    record = {"payload": "0123456789"}
    RecordTexts(record).cut([(0, 2, 5, "A"), (0, 4, 7, "B")])
    assert record == {"payload": "01AB789"}


def test_a_cut_within_another_leaves_nothing_of_either() -> None:
    record = {"payload": "0123456789"}
    RecordTexts(record).cut([(0, 1, 8, "A"), (0, 3, 5, "B"), (0, 8, 9, "C")])
    assert record == {"payload": "0ABC9"}


@pytest.mark.parametrize("pieces", [["abrac", "adabra-and-more"], ["ab", "racadabra-and", "-more"]])
def test_secrets_that_overlap_are_removed_whole(pieces: list[str]) -> None:
    """The second one is not split, but begins within one that is."""
    out = passed([delta(piece) for piece in [*pieces, " x"]], SECRET, "dabra-and-more")
    assert "".join(said(out)) == f"{mark(SECRET)} x"


def test_a_secret_is_removed_that_is_split_over_the_end_of_a_request() -> None:
    """A child that was interrupted may still send deltas."""
    end = {"kind": "turn_end", "req_id": "req_1", "payload": {}}
    records = [delta("say abra"), end, delta("cad"), delta("abra!")]
    assert len(find_leaks([json.dumps(record).encode() for record in records], [SECRET])) == 1
    out = passed(records, SECRET)
    assert "".join(said([out[0], *out[2:]])) == f"say {mark(SECRET)}!"


@given(
    text=st.lists(st.sampled_from(["abra", "cad", SECRET, "a", "x", SECRET[:7], '"'])).map("".join),
    cuts=st.lists(st.integers(1, 6), min_size=1),
)
def test_no_secret_remains_and_nothing_else_is_lost_however_a_text_is_split(text: str, cuts: list[int]) -> None:
    pieces, rest, at = [], text, 0
    while rest:
        size = cuts[at % len(cuts)]
        pieces.append(rest[:size])
        rest, at = rest[size:], at + 1
    records = [delta(piece) for piece in pieces]
    out = passed(json.loads(json.dumps(records)), SECRET)
    assert "".join(said(out)) == text.replace(SECRET, mark(SECRET))
    assert not find_leaks([json.dumps(record).encode() for record in out], [SECRET])
    assert len(out) == len(records)
