"""Secrets that came in pieces go from all of them, and nothing else changes."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bridge.protolog.leaks import LeakFinder
from bridge.protolog.pieces import MOST_WAITING, PieceScrubber
from bridge.protolog.scrub import mark

SECRET = "abracadabra"


def delta(text: str, item: str = "m", req_id: str = "req_1") -> dict[str, Any]:
    params = {"itemId": item, "delta": text}
    return {"kind": "rpc_notification", "method": "x/delta", "req_id": req_id, "payload": {"params": params}}


def passed(records: list[dict[str, Any]], *secrets: str) -> list[dict[str, Any]]:
    scrubber = PieceScrubber(secrets)
    out = [done for record in records for done in scrubber.feed(record)]
    return [*out, *scrubber.rest()]


def said(records: list[dict[str, Any]], item: str = "m") -> list[str]:
    params = [record["payload"]["params"] for record in records if "params" in record["payload"]]
    return [each["delta"] for each in params if each["itemId"] == item]


def test_the_mark_stands_in_the_first_piece() -> None:
    out = passed([delta(text) for text in ("say abra", "cad", "abra!", " twice")], SECRET)
    assert said(out) == [f"say {mark(SECRET)}", "", "!", " twice"]


def test_two_in_a_row_and_a_false_start() -> None:
    out = passed([delta(text) for text in ("abraabra", "cadabraabracad", "abraabracad", "abro")], SECRET)
    assert "".join(said(out)) == f"abra{mark(SECRET)}{mark(SECRET)}abracadabro"


def test_items_are_told_apart() -> None:
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


def test_records_come_out_in_order_and_do_not_wait_for_ever() -> None:
    records = [delta("abra", "waits for ever")]
    records += [delta(f"{number}", f"item {number}", f"req_{number}") for number in range(MOST_WAITING + 10)]
    scrubber = PieceScrubber([SECRET])
    out = [done for record in records for done in scrubber.feed(record)]
    assert out == records[: len(out)]
    assert len(out) > 5


def test_the_end_of_a_request_lets_its_records_go() -> None:
    scrubber = PieceScrubber([SECRET])
    assert list(scrubber.feed(delta("abra"))) == []
    end = {"kind": "turn_end", "req_id": "req_1", "payload": {}}
    assert list(scrubber.feed(end)) == [delta("abra"), end]


@given(
    text=st.lists(st.sampled_from(["abra", "cad", SECRET, "a", "x", SECRET[:7], '"'])).map("".join),
    cuts=st.lists(st.integers(1, 6), min_size=1),
)
def test_whatever_the_pieces_no_secret_is_left_and_nothing_else_is_lost(text: str, cuts: list[int]) -> None:
    """One text that holds the secret within one piece alone is another's business; here it is removed before."""
    pieces, rest, at = [], text, 0
    while rest:
        size = cuts[at % len(cuts)]
        pieces.append(rest[:size])
        rest, at = rest[size:], at + 1
    records = [delta(piece) for piece in pieces]
    out = passed(json.loads(json.dumps(records)), SECRET)
    assert "".join(said(out)) == text.replace(SECRET, mark(SECRET))
    finder = LeakFinder([SECRET])
    assert not [leak for number, record in enumerate(out) for leak in finder.feed(number, json.dumps(record).encode())]
    assert len(out) == len(records)
