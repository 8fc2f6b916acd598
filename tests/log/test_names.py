"""The ids and times of a recorded answer are given out again, each once and in their order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from harness import ROOT
from hypothesis import given
from hypothesis import strategies as st
from log.replayed import recordings_in

from bridge.log.recording import Frame, Piece, Recording
from bridge.playback.recorded import RecordedIds

LOG = Path("log.ndjson")


def recorded(*events: Any, said: Any = None) -> Recording:
    """An answer of these events; `said` is what the backend said."""
    stream = "".join(f"data: {orjson.dumps(event).decode()}\n\n" for event in events)
    found = Recording("req_1", LOG, client=[Piece(0.0, "client_sse", stream)])
    if said is not None:
        found.attempts[0] = [Frame(0.0, 1, "in", "rpc_notification", "m", None, None, said)]
    return found


def test_ids_come_in_the_order_in_which_they_were_made() -> None:
    names = RecordedIds(
        recorded(
            {"response": {"id": "resp_a", "created_at": 5}},
            {"item": {"id": "msg_a"}, "item_id": "msg_a"},
            {"item": {"id": "fc_a", "call_id": "call_a"}},
            {"item": {"id": "msg_b"}},
            {"response": {"id": "resp_a", "output": [{"id": "msg_a"}, {"id": "fc_b", "call_id": "call_b"}]}},
        )
    )
    given_out = [names.new_id(prefix) for prefix in ("msg", "resp", "msg", "fc", "fc", "call", "call")]
    assert given_out == ["msg_a", "resp_a", "msg_b", "fc_a", "fc_b", "call_a", "call_b"]


def test_ids_that_no_client_got_are_the_same_in_every_replay() -> None:
    wanted = ("msg", "resp", "msg", "rs")
    first, again = (
        [names.new_id(prefix) for prefix in wanted] for names in (RecordedIds(recorded()), RecordedIds(recorded()))
    )
    assert first == again
    assert len(set(first)) == len(first)
    assert [name[: name.index("_")] for name in first] == list(wanted)
    other = recorded()
    other.id = "req_2"
    assert not {RecordedIds(other).new_id(prefix) for prefix in wanted} & set(first)


def test_times_that_no_client_got_are_those_of_the_log() -> None:
    """When the request came, and when its turn ended."""
    found = recorded()
    found.ts, found.at, found.end_mono = "2026-03-01T08:16:40.500000Z", 100.0, 102.0
    names = RecordedIds(found)
    assert [names.now() for _ in range(3)] == [1772353000.5, 1772353002.5, 1772353002.5]
    for odd in ("", "yesterday"):
        found.ts = odd
        assert RecordedIds(found).now() == 0.0


def test_chat_names_are_written_with_a_hyphen() -> None:
    call = {"id": "call_a"}
    names = RecordedIds(
        recorded({"id": "chatcmpl-a", "created": 5, "choices": [{"delta": {"tool_calls": [call]}}, {"message": {}}]})
    )
    assert (names.new_id("chatcmpl"), names.new_id("call")) == ("chatcmpl_a", "call_a")


def test_ids_of_the_backend_are_not_given_out() -> None:
    names = RecordedIds(
        recorded({"item": {"id": "msg_theirs"}}, {"item": {"id": "msg_ours"}}, said={"itemId": "msg_theirs"})
    )
    assert names.new_id("msg") == "msg_ours"


def test_the_last_time_repeats() -> None:
    names = RecordedIds(recorded({"response": {"created_at": 5}}, {"response": {"created_at": 5, "completed_at": 7}}))
    assert [names.now() for _ in range(3)] == [5, 7, 7]


@given(st.lists(st.sampled_from(["msg_a", "msg_b", "fc_a", "resp_a", "chatcmpl-a", "msg_c"]), max_size=9))
def test_each_id_is_given_out_once(ids: list[str]) -> None:
    names = RecordedIds(recorded(*({"id": name} for name in ids)))
    prefixes = [name.replace("-", "_", 1).partition("_")[0] for name in dict.fromkeys(ids)]
    given_out = [names.new_id(prefix) for prefix in prefixes]
    assert len(set(given_out)) == len(given_out)
    assert given_out == [name.replace("-", "_", 1) for name in dict.fromkeys(ids)]
    assert names.new_id("msg") not in given_out


@given(st.recursive(st.none() | st.text(max_size=4) | st.integers(-9, 9), lambda inner: st.lists(inner, max_size=3)))
def test_events_of_any_shape_can_be_read(odd: Any) -> None:
    event = dict.fromkeys(("id", "response", "item", "error", "output", "choices", "created_at", "delta"), odd)
    names = RecordedIds(recorded(event, odd, {"choices": [{"delta": event}], "output": [event]}, said=event))
    assert names.new_id("none").startswith("none_")


def test_no_recording_gives_out_an_id_twice() -> None:
    for recording in recordings_in(ROOT / "fixtures/logs"):
        names = RecordedIds(recording)
        given_out = [
            names.new_id(prefix) for prefix in ("msg", "resp", "fc", "call", "rs", "chatcmpl") for _ in range(20)
        ]
        assert len(set(given_out)) == len(given_out)


def test_a_stream_lines_and_a_body_are_read_alike() -> None:
    stream = 'event: a\ndata: {"id": "msg_1"}\n\n: keepalive\n\ndata: [DONE]\n\n'
    for piece in (
        Piece(0.0, "client_sse", stream),
        Piece(0.0, "client_sse", '{"id": "msg_1"}\n{"b": 2}\n'),
        Piece(0.0, "client_line", {"id": "msg_1"}),
        Piece(0.0, "client_json", {"output": [{"id": "msg_1"}]}),
    ):
        assert RecordedIds(Recording("req_1", LOG, client=[piece])).new_id("msg") == "msg_1"
    assert RecordedIds(Recording("req_1", LOG, client=[Piece(0.0, "client_sse", "")])).new_id("msg") != "msg_1"
