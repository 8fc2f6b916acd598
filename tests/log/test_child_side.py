"""What a log says about its child, in whatever state the log is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness import ROOT
from hypothesis import given
from hypothesis import strategies as st

from bridge.appserver.standin.recorded import CallMatcher, RecordedChild
from bridge.log.child_side import read_child
from bridge.log.read import parse_record
from bridge.log.transcript import TranscriptReader

PATH = Path("log.ndjson")
TRACES = sorted((ROOT / "fixtures/traces").glob("*.ndjson"))
LISTED = "Invalid request: unknown variant `bridge/probe`, expected one of `initialize`, `thread/start`"


def child(*records: dict[str, Any]) -> RecordedChild:
    """What these records say."""
    return read_child((PATH, record) for record in records)


class Log:
    """Records of an event log, as a bridge would write them."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def add(self, kind: str, payload: dict[str, Any], *, req_id: str | None = None, **members: Any) -> None:
        count = len(self.records)
        record = {"ts": "2026-11-16T17:17:56Z", "mono": float(count), "run": "a", "seq": count, "phase": "backend_io"}
        direction = "out" if kind in ("rpc_request", "server_reply") else "in"
        record |= {"direction": direction, "kind": kind, "req_id": req_id, "payload": payload, **members}
        assert parse_record(json.dumps(record).encode()) == record
        self.records.append(record)

    def ask(self, number: int, method: str, req_id: str | None = None, **params: Any) -> None:
        self.add("rpc_request", {"id": number, "method": method, "params": params}, req_id=req_id, method=method)

    def reply(self, number: int, method: str, result: Any, req_id: str | None = None) -> None:
        self.add("rpc_response", {"id": number, "result": result}, req_id=req_id, method=method)

    def say(self, method: str, req_id: str | None = None, **params: Any) -> None:
        self.add("rpc_notification", {"method": method, "params": params}, req_id=req_id, method=method)

    def turn(self, number: int, req_id: str, thread: str, *, end: bool = True) -> None:
        self.ask(number, "thread/start", req_id, model=req_id)
        self.reply(number, "thread/start", {"thread": {"id": thread}}, req_id)
        self.ask(number + 1, "turn/start", req_id, threadId=thread)
        self.reply(number + 1, "turn/start", {"turn": {"id": f"turn of {req_id}"}}, req_id)
        if end:
            self.say("turn/completed", req_id, threadId=thread, turn={"id": f"turn of {req_id}"})


def kinds(tape: Any) -> list[list[str]]:
    """What happened in each scene."""
    return [[step.kind for step in scene.steps] for scene in tape.calls]


def test_children_that_are_started_together_are_kept_apart() -> None:
    """They count their calls alike, and the stand-in its threads: requests tell them apart. A Codex goes first."""
    log = Log()
    for method in ("initialize", "bridge/probe", "model/list"):
        number = ("initialize", "bridge/probe", "model/list").index(method) + 1
        for _ in range(2):
            log.ask(number, method)
        if method == "bridge/probe":
            for _ in range(2):
                log.add("rpc_error", {"id": number, "error": {"code": -32600, "message": LISTED}}, method=method)
        elif method == "initialize":
            log.reply(number, method, {"userAgent": "turnbridge-standin/1.0.0"})
            log.reply(number, method, {"userAgent": "turnbridge/0.163.0"})
        else:
            log.reply(number, method, {"data": ["mock"]})
            log.reply(number, method, {"data": ["real"]})
    log.ask(5, "thread/start", "one", model="one")
    log.ask(5, "thread/start", "two", model="two")
    log.reply(5, "thread/start", {"thread": {"id": "same"}}, "two")
    log.reply(5, "thread/start", {"thread": {"id": "same"}}, "one")
    log.ask(6, "turn/start", "one", threadId="same")
    log.ask(6, "turn/start", "two", threadId="same")
    log.say("turn/completed", "one", threadId="same", turn={"id": "of one"})
    log.say("turn/completed", "two", threadId="same", turn={"id": "of two"})
    found = child(*log.records)
    assert found.initialize == {"result": {"userAgent": "turnbridge/0.163.0"}}
    assert found.refusal == LISTED
    assert [answer.reply["result"] for answer in found.answers["model/list"]] == [{"data": ["real"]}]
    ends = {
        tape.calls[0].params["model"]: tape.calls[1].steps[-1].message["params"]["turn"]["id"] for tape in found.threads
    }
    assert ends == {"one": "of one", "two": "of two"}


def test_the_end_of_a_child_is_told_in_the_turns_that_it_ran() -> None:
    """And in no others: not in those that were over, nor in those that another child went on with."""
    log = Log()
    log.turn(1, "over", "t1")
    log.turn(3, "running", "t2", end=False)
    log.turn(5, "elsewhere", "t3", end=False)
    log.add("backend_exit", {"code": 9, "stderr": ""}, phase="backend_lifecycle", direction="none")
    log.say("turn/completed", "elsewhere", threadId="t3", turn={"id": "x"})
    log.turn(1, "after", "t1")
    over, running, elsewhere, after = child(*log.records).threads
    assert kinds(over) == kinds(elsewhere) == kinds(after) == [["reply"], ["reply", "notification"]]
    assert kinds(running) == [["reply"], ["reply", "exit"]]
    assert running.calls[1].steps[-1].code == 9


def test_what_belongs_to_no_thread_goes_with_the_one_that_was_just_heard_of() -> None:
    """Before any thread it is a greeting."""
    log = Log()
    log.ask(1, "initialize")
    log.reply(1, "initialize", {})
    log.say("configWarning")
    log.turn(2, "one", "t1")
    log.say("account/rateLimits/updated", rateLimits={})
    found = child(*log.records)
    assert [step.message["method"] for step in found.greeting] == ["configWarning"]
    assert found.threads[0].calls[-1].steps[-1].message["method"] == "account/rateLimits/updated"


def test_what_comes_before_the_thread_is_known_is_kept() -> None:
    """A notification may overtake the reply that names its thread."""
    log = Log()
    log.ask(1, "thread/start", "one")
    log.say("thread/started", thread={"id": "t1"})
    log.reply(1, "thread/start", {"thread": {"id": "t1"}}, "one")
    assert kinds(child(*log.records).threads[0]) == [["notification", "reply"]]


@given(st.sampled_from(TRACES), st.integers(0, 120), st.integers(0, 120))
def test_a_log_may_be_cut_anywhere(trace: Path, start: int, end: int) -> None:
    """Whatever is left of it is read, and can be looked for."""
    reader = TranscriptReader("cut")
    records = [record for line in trace.read_bytes().splitlines() if (record := reader.record(line)) is not None]
    found = child(*records[start:end])
    CallMatcher(found.threads)
    assert all(tape.calls for tape in found.threads)
