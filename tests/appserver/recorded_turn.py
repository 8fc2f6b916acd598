"""A turn that a recorded child answers."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import orjson
from harness import ROOT

from bridge.appserver.dialect import key_of
from bridge.appserver.turn import Call, Flow, Routes, RunningTurn
from bridge.core.events import TurnEvent


def recorded(trace: str) -> Iterator[dict[str, Any]]:
    """What the recorded child wrote, message by message."""
    for line in (ROOT / f"fixtures/traces/{trace}.ndjson").read_bytes().split(b"\n"):
        if line and (entry := orjson.loads(line))["dir"] == "in":
            yield entry["msg"]


def play_trace(
    running: RunningTurn, trace: str, ids: Collection[int], *, leave_out: Collection[str] = (), each: bool = False
) -> list[TurnEvent]:
    """The events of a turn: the recorded replies to the calls with these ids go to its flow, notifications to a route.

    With `each` the events are taken after every message, else once at the end.
    """
    routes = Routes()
    flow = running.begin()
    call: Call | None = next_call(flow, None)
    events: list[TurnEvent] = []
    for message in recorded(trace):
        if "method" in message:
            if message["method"] not in leave_out:
                routes.notify(key_of(message["params"]), message["method"], message["params"])
        elif message["id"] in ids:
            assert call is not None
            if call.claim is not None:
                routes.register(call.claim(message["result"]), running)
            call = next_call(flow, message["result"]) or call
        if each:
            events += running.take()
    assert routes.unclaimed == 0
    return events + running.take()


def call_of(flow: Flow, result: Any = None) -> Call:
    """The next step of a flow, which is a call, after the result of the last one."""
    step = flow.send(result)
    assert isinstance(step, Call)
    return step


def next_call(flow: Any, result: Any) -> Any:
    """The next call of a flow, after the result of the last one; None at its end."""
    try:
        return flow.send(result)
    except StopIteration:
        return None
