"""Requests are put together from the records of a log, in whatever order and however many of them there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bridge.core.events import Usage
from bridge.log.recording import Recording, read_recordings

Json = dict[str, Any]
LOG = Path("log.ndjson")


class Log:
    """Records, as a bridge would write them."""

    def __init__(self, run: str = "0123abcd") -> None:
        self.records: list[Json] = []
        self._run = run
        self.add("header", "header", None, {}, format=2)

    def add(self, phase: str, kind: str, req_id: str | None, payload: Any = None, **more: Any) -> Log:
        seq = len(self.records)
        at = {"ts": f"2026-01-01T00:00:{seq:02}Z", "mono": float(seq), "run": self._run, "seq": seq}
        self.records.append(at | {"phase": phase, "kind": kind, "req_id": req_id, "payload": payload} | more)
        return self

    def request(self, req_id: str, text: str = "hi") -> Log:
        body = {"model": "m", "input": text}
        return self.add("http_ingress", "client_request", req_id, {"path": "/v1/responses", "body": body})

    def call(self, req_id: str, method: str, **more: Any) -> Log:
        return self.add("backend_submission", "rpc_request", req_id, {"method": method}, method=method, **more)

    def sse(self, req_id: str, text: str) -> Log:
        return self.add("client_egress", "client_sse", req_id, text)

    def end(self, req_id: str, outcome: str = "completed") -> Log:
        return self.add("turn", "turn_end", req_id, {"outcome": outcome, "reason": None, "error": None})

    def read(self) -> list[Recording]:
        return list(read_recordings((LOG, record) for record in self.records))


def test_a_request_from_its_beginning_to_its_end() -> None:
    log = Log().request("req_1").add("turn", "turn_start", "req_1", {"model": "m"}).call("req_1", "thread/start")
    log.add("client_egress", "client_start", "req_1", {"status": 200, "headers": []})
    log.sse("req_1", "data: 1\n\n").sse("req_1", "data: 2\n\n").end("req_1")
    (found,) = log.read()
    assert (found.id, found.path, found.body) == ("req_1", "/v1/responses", {"model": "m", "input": "hi"})
    assert (found.ts, found.at, found.end_mono) == ("2026-01-01T00:00:01Z", 1.0, 7.0)
    assert (found.status, found.streamed, found.complete) == (200, True, True)
    assert found.sent == b"data: 1\n\ndata: 2\n\n"
    assert found.header["format"] == 2
    assert [frame.method for frame in found.attempts[0]] == ["thread/start"]


def test_requests_come_as_they_ended_and_last_those_without_an_end() -> None:
    log = Log().request("req_1").request("req_2").request("req_3").end("req_3").end("req_1")
    assert [(found.id, found.complete, found.number) for found in log.read()] == [
        ("req_3", True, 2),
        ("req_1", True, 0),
        ("req_2", False, 1),
    ]


def test_what_comes_after_the_end_is_not_another_request() -> None:
    """The child is told to forget the thread; in the legacy dialect a call may even be under way."""
    log = Log().request("req_1").call("req_1", "newConversation").end("req_1")
    log.call("req_1", "sendUserMessage").call("req_1", "removeConversationListener")
    assert [found.id for found in log.read()] == ["req_1"]


def test_a_request_whose_beginning_was_cut_off_is_not_lost() -> None:
    log = Log().sse("req_1", "data: 1\n\n").end("req_1").request("req_2").end("req_2")
    assert [(found.id, found.request is None) for found in log.read()] == [("req_1", True), ("req_2", False)]


def test_an_id_that_stands_in_a_log_twice_is_two_requests() -> None:
    log = Log().request("req_1", "a").end("req_1").request("req_1", "b").end("req_1")
    assert [((found.body or {})["input"], found.number) for found in log.read()] == [("a", 0), ("b", 1)]


def test_one_that_was_cut_off_is_two_requests_as_well() -> None:
    log = Log().request("req_1", "a").sse("req_1", "x").request("req_1", "a").sse("req_1", "y").end("req_1")
    assert [(found.sent, found.complete) for found in log.read()] == [(b"y", True), (b"x", False)]


def test_attempts_of_one_request_are_kept_apart() -> None:
    log = Log().request("req_1").call("req_1", "thread/start").call("req_1#1", "thread/start").end("req_1")
    (found,) = log.read()
    assert {attempt: len(frames) for attempt, frames in found.attempts.items()} == {0: 1, 1: 1}


def test_two_runs_in_one_file_have_their_own_headers_and_limits() -> None:
    one, other = Log("aaaaaaaa"), Log("bbbbbbbb")
    limits = {"params": {"rateLimits": {"primary": 1}}}
    one.add("backend_io", "rpc_notification", None, limits, method="account/rateLimits/updated")
    one.request("req_1").end("req_1")
    other.request("req_2").end("req_2")
    mixed = [record for pair in zip(one.records, other.records, strict=False) for record in pair] + one.records[3:]
    found = {each.id: each for each in read_recordings((LOG, record) for record in mixed)}
    assert found["req_1"].header["run"] == "aaaaaaaa"
    assert found["req_2"].header["run"] == "bbbbbbbb"
    assert (found["req_1"].limits, found["req_2"].limits) == ({"primary": 1}, None)


def test_a_thread_goes_on_counting_from_turn_to_turn() -> None:
    log = Log().request("req_1").call("req_1", "thread/start")
    usage = {"params": {"tokenUsage": {"total": {"inputTokens": 5, "outputTokens": 1}}}}
    more = {"method": "thread/tokenUsage/updated", "conversation_id": "t1"}
    log.add("backend_io", "rpc_notification", "req_1", usage, **more).end("req_1")
    log.request("req_2").call("req_2", "thread/inject_items", conversation_id="t1").end("req_2")
    log.call("req_2", "thread/unsubscribe", conversation_id="t1")
    log.request("req_3").call("req_3", "thread/inject_items", conversation_id="t1").end("req_3")
    assert [found.used for found in log.read()] == [None, Usage(5, 0, 1), None]


def test_what_a_client_got_in_each_form() -> None:
    found = Recording("req_1", LOG)
    add = (
        Log()
        .add("client_egress", "client_json", "req_1", {"a": 1})
        .add("client_egress", "client_line", "req_1", {"b": 2})
    )
    add.add("client_egress", "client_line", "req_1", None).sse("req_1", "").add(
        "client_egress", "client_sse", "req_1", 5
    )
    for record in add.records[1:]:
        found.add(record, 0)
    assert found.sent == b'{"a":1}{"b":2}\n'
    assert (found.status, found.body, found.path) == (None, None, "")
