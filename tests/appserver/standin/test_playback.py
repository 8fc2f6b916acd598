"""A recorded child over its pipes: what comes out is what the recording says came in."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from appserver.standin.wire import (
    AGENT,
    THREAD,
    TURN,
    Message,
    Wire,
    asked,
    begun,
    completed,
    delta,
    noted,
    playing,
    replied,
    transcript,
    whole_turn,
)
from harness import ROOT

from bridge.appserver.dialect import BEGINS

pytestmark = pytest.mark.deep  # each test starts several processes, or waits for real time

TRACES = sorted((ROOT / "fixtures/traces").glob("*.ndjson"))
ASK = [{"type": "text", "text": "hello"}]


def entries_of(path: Path) -> list[Message]:
    """The lines of a transcript."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def calls_in(entries: list[Message]) -> dict[str, Message]:
    """The parameters of the calls, by method."""
    calls = [entry["msg"] for entry in entries if entry["dir"] == "out" and "id" in entry["msg"]]
    return {call["method"]: call["params"] for call in calls}


def drive(wire: Wire, entries: list[Message], names: dict[str, str]) -> list[tuple[Message, Message]]:
    """Make the recorded calls, each when all has come that came before it; (recorded, played) of what came.

    `names` are ids that were told, recorded and played; the calls name what this child has told.
    """
    pairs: list[tuple[Message, Message]] = []
    for entry in entries:
        message = entry["msg"]
        if entry["dir"] == "out":
            wire.write(json.dumps(renamed(message, names)).encode())
        else:
            played = wire.read()
            learn(message, played, names)
            pairs.append((message, played))
    return pairs


def renamed(value: Any, names: dict[str, str]) -> Any:
    """A call with its ids exchanged."""
    if isinstance(value, dict):
        return {name: renamed(inner, names) for name, inner in value.items()}
    return names.get(value, value) if isinstance(value, str) else value


def learn(recorded: Any, played: Any, names: dict[str, str]) -> None:
    """Note which texts stand for which; one never stands for two."""
    if isinstance(recorded, dict) and isinstance(played, dict) and recorded.keys() == played.keys():
        for name in recorded:
            learn(recorded[name], played[name], names)
    elif isinstance(recorded, list) and isinstance(played, list) and len(recorded) == len(played):
        for one, other in zip(recorded, played, strict=True):
            learn(one, other, names)
    elif isinstance(recorded, str) and isinstance(played, str):
        assert names.setdefault(recorded, played) == played
    else:
        assert recorded == played


@pytest.mark.parametrize("trace", TRACES, ids=lambda path: path.stem)
def test_a_transcript_is_played_as_it_was_recorded(trace: Path) -> None:
    """Driven with its own calls, every message comes word for word and in order; a second time with ids of its own."""
    entries = entries_of(trace)
    first_call = next(n for n, entry in enumerate(entries) if entry["msg"].get("method") in BEGINS)
    with playing(trace) as wire:
        for recorded, played in drive(wire, entries, {}):
            assert played == recorded
        names: dict[str, str] = {}
        again = drive(wire, entries[first_call:], names)
    told = {recorded: played for recorded, played in names.items() if recorded != played}
    ids = {name for recorded, _ in again for name in ids_in(recorded)}
    assert ids
    assert ids <= told.keys()
    for name, own in told.items():
        # All that has changed are ids, and files that are named after them.
        assert name in ids or any(one in name and told[one] in own for one in ids), (name, own)
    assert len(set(told.values())) == len(told)


def ids_in(message: Message) -> set[str]:
    """The ids of threads, subscriptions, turns and items in a message of either dialect."""
    params, result = message.get("params") or {}, message.get("result") or {}
    event = params.get("msg") or {}
    found = [params.get(name) for name in ("threadId", "turnId", "itemId", "conversationId")]
    found += [result.get("conversationId"), result.get("subscriptionId"), event.get("item_id"), event.get("turn_id")]
    found += [
        (holder.get(name) or {}).get("id") for holder in (params, result, event) for name in ("thread", "turn", "item")
    ]
    return {name for name in found if name}


# Which turn is played


def test_equal_turns_are_played_in_order_and_the_last_one_repeats(tmp_path: Path) -> None:
    """What is asked decides, not when; the same question gets its answers one after the other."""
    log = transcript(
        tmp_path, *(whole_turn(ask, say, n) for n, (ask, say) in enumerate([("a", "1"), ("b", "2"), ("a", "3")], 1))
    )
    with playing(log) as wire:
        model = {"model": "gpt-5.2", "cwd": "/elsewhere"}
        assert [wire.turn(ask, **model) for ask in ("b", "a", "a", "a", "b")] == ["2", "1", "3", "3", "2"]


def test_several_threads_at_once_are_kept_apart(tmp_path: Path) -> None:
    """All threads begin alike; the prompt decides. Each has ids of its own in everything that is said."""
    log = transcript(tmp_path, *(whole_turn(f"ask {n}", f"answer {n}", n) for n in range(1, 6)))
    with playing(log) as wire:
        threads = {wire.start(model="gpt-5.2"): n for n in (3, 1, 5, 2, 4, 3)}
        assert len(threads) == 6
        for thread, n in threads.items():
            wire.send("turn/start", threadId=thread, input=[{"type": "text", "text": f"ask {n}"}])
        said, ended, turns = dict[str, str](), 0, set()
        while ended < 6:
            message = wire.read()
            if message.get("method") == "item/agentMessage/delta":
                said[message["params"]["threadId"]] = message["params"]["delta"]
            elif message.get("method") == "turn/completed":
                ended += 1
                turns.add(message["params"]["turn"]["id"])
    assert said == {thread: f"answer {n}" for thread, n in threads.items()}
    assert len(turns) == 6


def test_a_second_turn_is_matched_with_its_history(tmp_path: Path) -> None:
    """The same prompt means something else after another one."""
    talk = [
        *begun("one"),
        delta(1.1, "first"),
        completed(1.2),
        asked(2.0, 8, "turn/start", threadId=THREAD, input=[{"type": "text", "text": "go on"}]),
        replied(2.0, 8, {"turn": {"id": "turn-b"}}),
        delta(2.1, "after one", turn="turn-b", item="msg_2"),
        completed(2.2, turn="turn-b"),
    ]
    with playing(transcript(tmp_path, whole_turn("go on", "nothing before", 9), talk)) as wire:
        thread = wire.start(model="gpt-5.2")
        for prompt in ("one", "go on"):
            wire.call("turn/start", threadId=thread, input=[{"type": "text", "text": prompt}])
            messages = wire.until("turn/completed")
        assert [m["params"]["delta"] for m in messages if m["method"].endswith("delta")] == ["after one"]
        assert wire.turn("go on", model="gpt-5.2") == "nothing before"
        # Asked for at once, they come one after the other.
        thread = wire.start(model="gpt-5.2")
        for prompt in ("one", "go on"):
            wire.send("turn/start", threadId=thread, input=[{"type": "text", "text": prompt}])
        messages = wire.until("turn/completed") + wire.until("turn/completed")
        said = [m["params"]["delta"] for m in messages if m.get("method") == "item/agentMessage/delta"]
        assert said == ["first", "after one"]
        assert "no active turn" in wire.call("turn/interrupt", threadId=thread)["error"]["message"]


def test_a_miss_reports_the_differences(tmp_path: Path) -> None:
    """Which member of which call, in the nearest recording; the thread is as it was before the call."""
    log = transcript(tmp_path, whole_turn("What is the weather in Bern?", "sunny", 1), whole_turn("sing", "la", 2))
    with playing(log) as wire:
        wire.call("initialize")
        refused = wire.call("thread/start", model="gpt-6")["error"]
        assert refused["code"] == -32600
        assert refused["message"] == (
            "no recorded turn matches: thread/start differs from the nearest recording (transcript-1) "
            'in model: recorded "gpt-5.2", received "gpt-6"'
        )
        thread = wire.start(model="gpt-5.2")
        ask = [{"type": "text", "text": "What is the weather in Basel?"}]
        message = wire.call("turn/start", threadId=thread, input=ask, effort="high")["error"]["message"]
        assert "turn/start differs from the nearest recording (transcript-1)" in message
        assert 'input.0.text: recorded …"' in message
        assert 'Bern?", received …"' in message
        assert 'Basel?"; effort: recorded nothing, received "high"' in message
        ask = [{"type": "text", "text": "sing"}]
        assert "result" in wire.call("turn/start", threadId=thread, input=ask)


def test_on_miss_nearest_plays_the_nearest(tmp_path: Path) -> None:
    """And said so on stderr, with what differs."""
    log = transcript(tmp_path, whole_turn("What is the weather in Bern?", "sunny", 1), whole_turn("sing", "la", 2))
    errors = tmp_path / "stderr"
    with playing(log, "--on-miss=nearest", stderr=errors) as wire:
        assert wire.turn("What is the weather in Basel?", model="gpt-5.2") == "sunny"
        assert wire.turn("sing!", model="gpt-7") == "la"
    lines = errors.read_text().splitlines()
    assert len(lines) == 3
    assert 'in input.0.text: recorded …"' in lines[0]
    assert lines[0].endswith("; replaying transcript-1 instead")
    assert "in model" in lines[1]


def test_ids_of_calls_and_nulls_do_not_count(tmp_path: Path) -> None:
    """Clients and bridges make up the ids of calls; each stands for the call that it names."""

    def items(one: str, two: str) -> list[Message]:
        outputs = [{"type": "function_call_output", "call_id": name, "output": name[-1]} for name in (two, one)]
        calls = [{"type": "function_call", "id": f"fc_{name}", "call_id": name, "name": "f"} for name in (one, two)]
        return calls + [output | {"output": "same"} for output in outputs]

    log = transcript(
        tmp_path,
        begun("x")[:2],
        [asked(1.5, 5, "thread/inject_items", threadId=THREAD, items=items("a", "b")), replied(1.5, 5, {})],
    )
    with playing(log) as wire:
        thread = wire.start(model="gpt-5.2", developerInstructions=None)
        refused = wire.call("turn/start", threadId=thread, input=ASK)["error"]["message"]
        assert "the recording continues with thread/inject_items, not turn/start" in refused
        refused = wire.call("thread/inject_items", threadId=thread, items=items("c", "c"))["error"]["message"]
        assert "items.1.call_id" in refused
        assert wire.call("thread/inject_items", threadId=thread, items=items("c", "d"))["result"] == {}


# The rest of the protocol


def test_it_answers_as_codex_does(tmp_path: Path) -> None:
    """Before and after the handshake, to what it does not know, and to what is no message."""
    with playing(transcript(tmp_path, whole_turn("hello", "hi", 1))) as wire:
        assert wire.call("model/list")["error"] == {"code": -32600, "message": "Not initialized"}
        assert wire.call("initialize")["result"] == {"userAgent": AGENT}
        assert wire.call("initialize")["error"]["message"] == "Already initialized"
        refused = wire.call("no/such")["error"]["message"]
        assert refused.startswith("Invalid request: unknown variant `no/such`, expected one of `")
        assert "`turn/start`" in refused
        assert "newConversation" not in refused
        for line in (
            b"garbage",
            b"[]",
            b"[1]",
            b'"x"',
            b"\xff\xfe",
            b"{}",
            b'{"id":5}',
            b'{"id":null,"method":"model/list"}',
        ):
            wire.write(line)
        wire.write(b'{"id":1.5,"method":"model/list"}')
        wire.write(b'{"method":"initialized"}')
        assert [model["id"] for model in wire.call("model/list")["result"]["data"]] == ["gpt-5.2"]
        assert wire.call("account/read")["result"] == {"account": None, "requiresOpenaiAuth": False}
        assert "thread not found" in wire.call("turn/start", threadId="none", input=ASK)["error"]["message"]
        assert "thread not found" in wire.call("turn/start")["error"]["message"]
        wire.write(b'{"id":7,"method":"thread/start","params":[1]}')
        assert "no recorded turn matches" in wire.read()["error"]["message"]
        deep = b'{"id":8,"method":"thread/start","params":{"x":' + b"[" * 900 + b"]" * 900 + b"}}"
        wire.write(deep)
        assert "no recorded turn matches" in wire.read()["error"]["message"]
        assert wire.seen == []
        assert wire.turn("hello", model="gpt-5.2") == "hi"


def test_notifications_that_the_client_does_not_want_are_left_out(tmp_path: Path) -> None:
    """By their exact names, as Codex does it."""
    with playing(transcript(tmp_path, whole_turn("hello", "hi", 1))) as wire:
        wire.call("initialize", capabilities={"optOutNotificationMethods": ["turn/started", "item/agentMessage/delta"]})
        thread = wire.start(model="gpt-5.2")
        wire.call("turn/start", threadId=thread, input=ASK)
        assert [message["method"] for message in wire.until("turn/completed")] == ["turn/completed"]


@pytest.mark.parametrize("capabilities", [5, [], {"optOutNotificationMethods": 5}, {"optOutNotificationMethods": [5]}])
def test_capabilities_of_any_form_are_accepted(tmp_path: Path, capabilities: Any) -> None:
    with playing(transcript(tmp_path, whole_turn("hello", "hi", 1))) as wire:
        assert "result" in wire.call("initialize", capabilities=capabilities)
        assert wire.turn("hello", model="gpt-5.2") == "hi"


def test_requests_of_the_child_wait_for_their_answers(tmp_path: Path) -> None:
    """They are asked again under ids of this process; the turn goes on when the answer has come, whatever it says."""
    request = {"threadId": THREAD, "turnId": TURN, "itemId": "call_7", "command": "ls"}
    approval = {"method": "item/commandExecution/requestApproval", "id": 41, "params": request}
    tool = {"method": "item/tool/call", "id": 42, "params": {"threadId": THREAD, "turnId": TURN, "callId": "call_8"}}
    log = transcript(
        tmp_path,
        begun("hello"),
        [
            {"t": 1.1, "dir": "in", "msg": approval},
            {"t": 1.1, "dir": "in", "msg": tool},
            {"t": 1.2, "dir": "out", "msg": {"id": 42, "result": {"success": True}}},
            {"t": 1.2, "dir": "out", "msg": {"id": 41, "result": {"decision": "decline"}}},
            noted(1.3, "serverRequest/resolved", threadId=THREAD, requestId=41),
            delta(1.3, "done"),
            completed(1.4),
        ],
    )
    errors = tmp_path / "stderr"
    with playing(log, stderr=errors) as wire:
        for answers in ({"decision": "decline"}, {"decision": "accept"}):
            thread = wire.start(model="gpt-5.2")
            wire.call("turn/start", threadId=thread, input=ASK)
            first, second = wire.until("item/tool/call")[-2:]
            assert first["params"]["threadId"] == second["params"]["threadId"] == thread
            assert first["id"] != second["id"]
            assert wire.nothing()
            wire.write(json.dumps({"id": first["id"], "result": answers}).encode())
            assert wire.nothing()
            wire.write(json.dumps({"id": second["id"], "result": {"success": True}}).encode())
            messages = wire.until("turn/completed")
            assert messages[0]["params"] == {"threadId": thread, "requestId": first["id"]}
            assert messages[1]["params"]["delta"] == "done"
    assert errors.read_text().count("an answer differs from the recorded one") == 1


# Interrupts


def slow(name: str) -> tuple[Path, list[Message]]:
    """The recording of an interrupted turn, and its entries."""
    path = next(trace for trace in TRACES if trace.stem == name)
    return path, entries_of(path)


@pytest.mark.parametrize("moment", [0, 1, 2])
def test_a_recorded_interrupt_may_come_earlier(moment: int) -> None:
    """After any of the deltas, at the recorded speed, the turn ends as the recorded one did."""
    path, entries = slow("current_0.166.0_interrupt")
    call, ask = (calls_in(entries)[method] for method in ("thread/start", "turn/start"))
    with playing(path, "--speed=1") as wire:
        thread = wire.start(**call)
        turn = wire.call("turn/start", **ask | {"threadId": thread})["result"]["turn"]["id"]
        for _ in range(moment):
            wire.until("item/agentMessage/delta")
        assert "found" in wire.call("turn/interrupt", threadId=thread, turnId="other")["error"]["message"]
        assert wire.call("turn/interrupt", threadId=thread, turnId=turn)["result"] == {}
        messages = wire.until("turn/completed")
        assert messages[-1]["params"]["turn"]["status"] == "interrupted"
        assert messages[-1]["params"]["turn"]["durationMs"] == 915
        assert len([m for m in messages if m.get("method") == "item/agentMessage/delta"]) <= 3 - moment
        assert (
            wire.call("turn/interrupt", threadId=thread, turnId=turn)["error"]["message"]
            == "no active turn to interrupt"
        )


def test_a_turn_that_was_never_interrupted_can_be(tmp_path: Path) -> None:
    """It stops where it is: `{}`, then the end as Codex tells it."""
    log = transcript(tmp_path, begun("hello"), [delta(1.05, "a"), delta(9, "b"), completed(9)])
    with playing(log, "--speed=1") as wire:
        thread = wire.start(model="gpt-5.2")
        turn = wire.call("turn/start", threadId=thread, input=ASK)["result"]["turn"]["id"]
        wire.until("item/agentMessage/delta")
        number = wire.send("turn/interrupt", threadId=thread, turnId=turn)
        assert wire.read() == {"id": number, "result": {}}
        assert wire.read()["params"] == {"threadId": thread, "status": {"type": "idle"}}
        done = wire.read()
        assert done["method"] == "turn/completed"
        assert done["params"]["turn"] == {"id": turn, "items": [], "status": "interrupted", "error": None}
        assert wire.nothing()


def test_a_legacy_turn_that_was_never_interrupted_can_be() -> None:
    """`turn_aborted` comes before the reply there."""
    path = next(trace for trace in TRACES if trace.stem == "legacy_0.107.0_text")
    calls = calls_in(entries_of(path))
    with playing(path, "--speed=1") as wire:
        wire.call("initialize")
        conversation = wire.call("newConversation", **calls["newConversation"])["result"]["conversationId"]
        wire.call("addConversationListener", conversationId=conversation)
        wire.call("sendUserMessage", **calls["sendUserMessage"] | {"conversationId": conversation})
        turn = wire.until("codex/event/task_started")[-1]["params"]["id"]
        reply = wire.call("interruptConversation", conversationId=conversation)
        assert reply["result"] == {"abortReason": "interrupted"}
        aborted = wire.seen[-1]["params"]
        assert aborted["msg"] == {"type": "turn_aborted", "turn_id": turn, "reason": "interrupted"}
        assert aborted["conversationId"] == conversation
        assert wire.until("turn/completed")[-1]["params"]["turn"]["status"] == "interrupted"


def test_the_turn_fails_if_the_client_does_not_interrupt_as_recorded(tmp_path: Path) -> None:
    """The recorded one did, so nobody knows what would have come."""
    path, entries = slow("current_0.166.0_interrupt")
    call, ask = (calls_in(entries)[method] for method in ("thread/start", "turn/start"))
    with playing(path) as wire:
        thread = wire.start(**call)
        wire.call("turn/start", **ask | {"threadId": thread})
        error, done = wire.until("turn/completed")[-2:]
        assert "the recorded client interrupted this turn" in error["params"]["error"]["message"]
        assert error["params"]["willRetry"] is False
        assert done["params"]["turn"]["status"] == "failed"


# Recordings that stop in the middle


@pytest.mark.parametrize("kept", range(1, 7))
def test_a_cut_recording_is_played_up_to_the_cut(tmp_path: Path, kept: int) -> None:
    """Wherever it was cut, every call is answered, and the turn ends as failed."""
    turn = [*begun("hello"), delta(1.1, "half")][:kept]
    if kept < 3:
        # The prompt is in another one alone.
        turn += whole_turn("hello", "half", 7)[2:5]
    with playing(transcript(tmp_path, turn, handshake=kept > 3)) as wire:
        thread = wire.start(model="gpt-5.2")
        assert "result" in wire.call("turn/start", threadId=thread, input=ASK)
        error, done = wire.until("turn/completed")[-2:]
        assert error["params"]["error"]["message"].startswith("The recording ends here")
        assert done["params"]["turn"]["status"] == "failed"
        assert {error["params"]["threadId"], done["params"]["threadId"]} == {thread}
        assert error["params"]["turnId"] == done["params"]["turn"]["id"]


def test_a_cut_legacy_recording_ends_in_its_own_dialect(tmp_path: Path) -> None:
    """As an error, and a task that completes with nothing."""
    path = next(trace for trace in TRACES if trace.stem == "legacy_0.107.0_text")
    entries = entries_of(path)
    calls = calls_in(entries)
    with playing(transcript(tmp_path, entries[:30], handshake=False)) as wire:
        wire.call("initialize")
        conversation = wire.call("newConversation", **calls["newConversation"])["result"]["conversationId"]
        wire.call("sendUserMessage", **calls["sendUserMessage"] | {"conversationId": conversation})
        messages = wire.until("turn/completed")
        error, complete = (m["params"]["msg"] for m in messages[-3:-1])
        assert error["type"] == "error"
        assert error["message"].startswith("The recording ends here")
        assert complete == {"type": "task_complete", "last_agent_message": None}


# Time


def test_the_recorded_times_are_kept(tmp_path: Path) -> None:
    """At speed 1 half of all events come within 20 ms of their time, at speed 4 in a quarter of it; else at once."""
    times = [0.05 + 0.031 * n + 0.02 * (n % 3) for n in range(30)]
    answer = [delta(1 + at, f"{at} ") for at in times]
    log = transcript(tmp_path, begun("hello"), answer, [completed(1 + times[-1])])
    took = {}
    for speed in (1, 4, 0):
        with playing(log, f"--speed={speed}") as wire:
            thread = wire.start(model="gpt-5.2")
            began = monotonic()
            wire.send("turn/start", threadId=thread, input=ASK)
            came = []
            while (message := wire.read()).get("method") != "turn/completed":
                if message.get("method") == "item/agentMessage/delta":
                    came.append(monotonic() - began)
            took[speed] = monotonic() - began
            if speed:
                assert statistics.median(abs(a - b / speed) for a, b in zip(came, times, strict=True)) < 0.02
    assert took[0] < times[-1] / 4
