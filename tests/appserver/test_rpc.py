"""The JSON-RPC peer: ids, replies, notifications, requests, and whatever else a child may write."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bridge.appserver.calls import ANSWERS, answer_request
from bridge.appserver.connection import Connection, Reply, encode_request
from bridge.appserver.dialect import key_of
from bridge.appserver.failures import RpcError
from bridge.appserver.turn import Routes
from bridge.errors import BackendCrashed


class Ends:
    """A peer, and everything that it hands out."""

    def __init__(self, tap: Any = None) -> None:
        self.notifications: list[tuple[str, dict[str, Any]]] = []
        self.replies: list[tuple[str, Reply]] = []
        self.asked: list[tuple[str, str | None]] = []
        self.open: set[str] = set()
        """Methods of requests that stay without an answer."""
        self.peer = Connection(Routes(), on_notification=self._notified, answer=self._answer, tap=tap)

    def call(self, method: str, params: Any = None) -> int:
        return self.peer.call(method, params, lambda reply: self.replies.append((method, reply)))

    def receive(self, **message: Any) -> None:
        self.peer.receive(orjson.dumps(message))

    def sent(self) -> list[dict[str, Any]]:
        """What was queued since the last call, each on a line of its own."""
        lines, self.peer.outgoing = self.peer.outgoing, []
        assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
        return [orjson.loads(line) for line in lines]

    def _notified(self, method: str, params: dict[str, Any]) -> None:
        self.notifications.append((method, params))

    def _answer(self, line: bytes, method: str, key: str | None) -> bytes | None:
        self.asked.append((method, key))
        return None if method in self.open else answer_request(line)


class RecordingTap:
    """A tap that keeps what it sees."""

    wants_lines = True

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, Any]]] = []

    def rpc(self, direction: str, kind: str, line: bytes, **about: Any) -> None:
        assert b"\n" not in line
        self.seen.append((direction, kind, about))


# What we send


def test_the_envelope_has_the_documents_order() -> None:
    """Seed 003: jsonrpc, id, method, params, in that order, byte for byte."""
    line = encode_request(4, "sendUserMessage", {"b": 1, "a": 2})
    assert line == b'{"jsonrpc":"2.0","id":4,"method":"sendUserMessage","params":{"b":1,"a":2}}'
    assert encode_request(1, "x", None) == b'{"jsonrpc":"2.0","id":1,"method":"x"}'


def test_every_call_has_an_id_of_its_own() -> None:
    """Ids count up; a forgotten one is not used again."""
    ends = Ends()
    ids = [ends.call("a"), ends.call("b", {"x": 1})]
    ends.peer.forget(ids[1])
    ids.append(ends.call("c"))
    assert len(set(ids)) == 3
    assert [message["id"] for message in ends.sent()] == ids


def test_a_notification_has_no_id() -> None:
    """A notification of ours carries parameters only when there are any."""
    ends = Ends()
    ends.peer.notify("initialized")
    ends.peer.notify("x", {"a": 1})
    assert ends.sent() == [
        {"jsonrpc": "2.0", "method": "initialized"},
        {"jsonrpc": "2.0", "method": "x", "params": {"a": 1}},
    ]


# Replies


@given(st.permutations(range(8)), st.lists(st.integers(0, 7)))
def test_replies_find_their_calls_in_any_order(order: list[int], again: list[int]) -> None:
    """The id alone says whose reply it is, however many wait and however often some are answered again."""
    ends = Ends()
    calls = [ends.call(f"call {number}") for number in range(8)]
    for number in order:
        ends.receive(id=calls[number], result={"n": number} if number else None)
    for number in again:
        ends.receive(id=calls[number], result="again")
    assert ends.replies == [(f"call {number}", Reply(result={"n": number} if number else None)) for number in order]
    assert ends.peer.counts.strays == len(again)


def test_a_second_reply_is_a_stray() -> None:
    """A call is answered once; what comes again is counted and ignored."""
    ends = Ends()
    call = ends.call("a")
    ends.receive(id=call, result=1)
    ends.receive(id=call, result=2)
    assert [reply.result for _, reply in ends.replies] == [1]
    assert ends.peer.counts.strays == 1


@pytest.mark.parametrize("call_id", [99, 0, -1, "1", 1.0, True, None, [1], {"id": 1}, 2**64, "x"])
def test_a_reply_to_nothing_is_a_stray(call_id: Any) -> None:
    """Only the exact integer that was sent is one of our ids."""
    ends = Ends()
    assert ends.call("a") == 1
    line = orjson.dumps({"id": call_id, "result": 1}) if call_id != 2**64 else b'{"id":18446744073709551616,"result":1}'
    ends.peer.receive(line)
    assert ends.replies == []
    assert ends.peer.counts.strays == 1
    ends.receive(id=1, result="ours")
    assert ends.replies == [("a", Reply(result="ours"))]


def test_a_forgotten_call_gets_no_reply() -> None:
    """After `forget` a reply is a stray; forgetting twice does no harm."""
    ends = Ends()
    call = ends.call("a")
    ends.peer.forget(call)
    ends.peer.forget(call)
    ends.receive(id=call, result=1)
    assert ends.replies == []
    assert ends.peer.counts.strays == 1


def test_an_error_reply_becomes_an_rpc_error() -> None:
    """The error names the method and keeps the child's code and words."""
    ends = Ends()
    ends.receive(id=ends.call("turn/start"), error={"code": -32600, "message": "no such thread"})
    ((_, reply),) = ends.replies
    assert isinstance(reply.error, RpcError)
    assert (reply.error.method, reply.error.rpc_code, reply.error.rpc_message) == (
        "turn/start",
        -32600,
        "no such thread",
    )
    assert "turn/start" in reply.error.message


@pytest.mark.parametrize("error", ["words", 5, [], {"code": "x"}, {"message": None}, {"code": 1.5, "message": 7}])
def test_a_misshapen_error_is_still_an_error(error: Any) -> None:
    """With any value in `error`, the call has failed and its caller gets an error."""
    ends = Ends()
    ends.receive(id=ends.call("a"), error=error)
    ((_, reply),) = ends.replies
    assert isinstance(reply.error, RpcError)
    assert isinstance(reply.error.rpc_code, int)
    assert isinstance(reply.error.rpc_message, str)


def test_a_null_error_is_none() -> None:
    """A reply with `error: null` is a result."""
    ends = Ends()
    ends.receive(id=ends.call("a"), error=None, result=3)
    assert ends.replies == [("a", Reply(result=3))]


def test_the_end_fails_what_is_pending() -> None:
    """When the child is gone every open call fails, once, with the given error."""
    ends = Ends()
    done, open_call = ends.call("done"), ends.call("open")
    ends.receive(id=done, result=1)
    error = BackendCrashed("gone")
    ends.peer.close(error)
    ends.peer.close(BackendCrashed("again"))
    assert ends.replies == [("done", Reply(result=1)), ("open", Reply(error=error))]
    ends.receive(id=open_call, result=1)
    assert ends.peer.counts.strays == 1


def test_a_call_may_be_made_from_within_a_reply() -> None:
    """The owner of a reply may go on at once, also when everything is being closed."""
    ends = Ends()
    calls: list[int] = []
    ends.peer.call("a", None, lambda _: calls.append(ends.call("b")))
    ends.peer.close(BackendCrashed("gone"))
    assert [message["method"] for message in ends.sent()] == ["a", "b"]
    ends.receive(id=2, result="late")
    assert ends.replies == [("b", Reply(result="late"))]


# What the child sends on its own


def test_notifications_need_no_jsonrpc_member_and_may_have_others() -> None:
    """Codex leaves `jsonrpc` out and adds `emittedAtMs`."""
    ends = Ends()
    ends.receive(method="turn/started", params={"threadId": "t"}, emittedAtMs=1)
    ends.receive(jsonrpc="2.0", method="x")
    ends.receive(method="y", params=[1])
    assert ends.notifications == [("turn/started", {"threadId": "t"}), ("x", {}), ("y", {})]
    assert ends.peer.counts.garbage == 0


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"garbage",
        b"{",
        b'{"method":"x"',
        b"null",
        b"5",
        b'"text"',
        b"[]",
        b'[{"id":1,"result":1}]',
        b"{}",
        b'{"jsonrpc":"2.0"}',
        b'{"result":1}',
        b'{"method":5}',
        b'{"method":null,"params":{}}',
        b"\xff\xfe",
        b'{"method":"\xff"}',
        b"\xef\xbb\xbf{}",
        b'{"method":"x","params":NaN}',
        b"[" * 100_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b"\r",
        b"2026-01-01 WARN something",
    ],
)
def test_garbage_is_counted_and_nothing_else_happens(line: bytes) -> None:
    """One bad line has no effect: pending calls and later lines are as before."""
    ends = Ends()
    call = ends.call("a")
    ends.sent()
    ends.peer.receive(line)
    assert ends.peer.counts.garbage == 1
    assert (ends.replies, ends.notifications, ends.sent()) == ([], [], [])
    ends.receive(id=call, result=1)
    assert ends.replies == [("a", Reply(result=1))]


@pytest.mark.parametrize("method", [*ANSWERS, "no/such/method"])
@pytest.mark.parametrize("call_id", [0, 1, "ask-1", None])
def test_every_request_is_answered_at_once(method: str, call_id: Any) -> None:
    """The reply is in `outgoing` when `receive` returns, under the child's id, whatever ids we use."""
    ends = Ends()
    ours = ends.call("ours")
    ends.sent()
    ends.receive(id=call_id, method=method, params={"threadId": "t"})
    (reply,) = ends.sent()
    assert reply["id"] == call_id
    assert ("result" in reply) != ("error" in reply)
    assert ends.notifications == []
    ends.receive(id=ours, result=1)
    assert ends.replies == [("ours", Reply(result=1))]


@pytest.mark.parametrize(
    ("params", "key"), [({"threadId": "t"}, "t"), ({"conversationId": "c"}, "c"), ({}, None), ([1], None), (None, None)]
)
def test_the_answering_function_gets_the_method_and_the_thread(params: Any, key: str | None) -> None:
    """So that it can decide by them."""
    ends = Ends()
    ends.receive(id=1, method="ask", params=params)
    assert ends.asked == [("ask", key)]


def test_a_request_may_stay_open() -> None:
    """Nothing is written for it, the log has the request alone, and everything else goes on."""
    tap = RecordingTap()
    ends = Ends(tap)
    ends.open = {"item/tool/call"}
    ends.receive(id=7, method="item/tool/call", params={"threadId": "t"})
    assert ends.sent() == []
    assert tap.seen == [("in", "server_request", {"method": "item/tool/call", "rpc_id": 7, "key": "t"})]
    ends.receive(id=8, method="item/tool/requestUserInput")
    (reply,) = ends.sent()
    assert reply["id"] == 8


def test_the_tap_sees_every_arrow() -> None:
    """Calls, replies, notifications, requests, strays and garbage are recorded, with ids and threads where known."""
    tap = RecordingTap()
    ends = Ends(tap)
    ends.peer.call("turn/start", {"threadId": "t"}, lambda reply: None, "req_1")
    ends.receive(id=1, result={})
    ends.peer.call("x", None, lambda reply: None)
    ends.receive(id=2, error={"code": 1, "message": "m"})
    ends.peer.notify("initialized")
    ends.receive(method="note", params={"conversationId": "c"})
    ends.receive(method="ask", id="q", params={"threadId": "t"})
    ends.receive(id=99, result={})
    ends.peer.receive(b"garbage")
    assert [(direction, kind) for direction, kind, _ in tap.seen] == [
        ("out", "rpc_request"),
        ("in", "rpc_response"),
        ("out", "rpc_request"),
        ("in", "rpc_error"),
        ("out", "rpc_notification"),
        ("in", "rpc_notification"),
        ("in", "server_request"),
        ("out", "server_reply"),
        ("in", "rpc_response"),
        ("in", "garbage"),
    ]
    assert tap.seen[0][2] == {"method": "turn/start", "rpc_id": 1, "key": "t", "req_id": "req_1"}
    assert tap.seen[1][2] == {"method": "turn/start", "rpc_id": 1, "req_id": "req_1"}
    assert tap.seen[5][2] == {"method": "note", "key": "c"}
    assert tap.seen[6][2] == {"method": "ask", "rpc_id": "q", "key": "t"}


@pytest.mark.parametrize(
    ("params", "key"),
    [
        ({"threadId": "t"}, "t"),
        ({"conversationId": "c"}, "c"),
        ({"threadId": "t", "conversationId": "c"}, "t"),
        ({"threadId": None, "conversationId": "c"}, "c"),
        ({"threadId": 5}, None),
        ({"threadId": ["t"]}, None),
        ({}, None),
        (None, None),
        ([], None),
    ],
)
def test_the_key_is_the_thread_or_the_conversation(params: Any, key: str | None) -> None:
    """Both dialects' messages are filed under what they are about."""
    assert key_of(params) == key


def test_a_peer_can_be_printed() -> None:
    """Its state can be read off it."""
    ends = Ends()
    ends.call("a")
    ends.peer.receive(b"x")
    assert repr(ends.peer) == "<Connection pending=1 garbage=1 strays=0>"


class PeerMachine(RuleBasedStateMachine):
    """Any order of calls, replies, notifications, requests, garbage and the end, against a model of what is due."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = Ends()
        self.due: dict[int, list[Reply]] = {}
        self.used: set[int] = set()
        self.replied = self.strays = self.garbage = self.notified = 0

    @rule(params=st.none() | st.dictionaries(st.text(max_size=3), st.integers(-5, 5), max_size=2))
    def call(self, params: Any) -> None:
        heard: list[Reply] = []
        call_id = self.ends.peer.call("m", params, heard.append)
        assert call_id not in self.used
        self.used.add(call_id)
        self.due[call_id] = heard
        (sent,) = self.ends.sent()
        assert sent["id"] == call_id
        assert sent.get("params") == params

    @precondition(lambda self: self.due)
    @rule(data=st.data(), failed=st.booleans())
    def reply(self, data: st.DataObject, failed: bool) -> None:
        call_id = data.draw(st.sampled_from(sorted(self.due)))
        heard = self.due.pop(call_id)
        outcome: dict[str, Any] = {"error": {"code": call_id, "message": "m"}} if failed else {"result": call_id}
        self.ends.receive(id=call_id, **outcome)
        (reply,) = heard
        assert (reply.error is not None) == failed
        assert reply.result == (None if failed else call_id)

    @precondition(lambda self: self.due)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        call_id = data.draw(st.sampled_from(sorted(self.due)))
        self.ends.peer.forget(call_id)
        assert self.due.pop(call_id) == []

    @rule(call_id=st.integers(-2, 30) | st.text(max_size=2) | st.floats(allow_nan=False) | st.none() | st.booleans())
    def stray(self, call_id: Any) -> None:
        if type(call_id) is not int or call_id not in self.due:
            self.ends.receive(id=call_id, result=1)
            self.strays += 1

    @rule(line=st.sampled_from([b"x", b"[]", b"{}", b"5", b'{"method":1}']) | st.binary(max_size=5))
    def receive_garbage(self, line: bytes) -> None:
        self.ends.peer.receive(line)
        self.garbage += 1

    @rule(method=st.text(max_size=4), params=st.none() | st.just({"threadId": "t"}) | st.just([1]))
    def notification(self, method: str, params: Any) -> None:
        self.ends.receive(method=method, params=params)
        self.notified += 1
        assert self.ends.notifications[-1][0] == method

    @rule(method=st.sampled_from([*ANSWERS, "x"]), call_id=st.integers(-2, 30) | st.text(max_size=2))
    def request(self, method: str, call_id: Any) -> None:
        self.ends.receive(method=method, id=call_id)
        (reply,) = self.ends.sent()
        assert reply["id"] == call_id

    @rule()
    def close(self) -> None:
        error = BackendCrashed("gone")
        self.ends.peer.close(error)
        assert all(heard == [Reply(error=error)] for heard in self.due.values())
        self.due.clear()

    @invariant()
    def the_counts_are_right(self) -> None:
        peer = self.ends.peer
        assert repr(peer) == f"<Connection pending={len(self.due)} garbage={self.garbage} strays={self.strays}>"
        assert len(self.ends.notifications) == self.notified
        assert all(heard == [] for heard in self.due.values())


TestPeerMachine = PeerMachine.TestCase
TestPeerMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
