"""One child and its faults. The children are real processes; the tests talk to them as the backends do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import trio
import trio.testing
from harness import ROOT, python_program, scripted_codex, turns
from server.inprocess import Program, Tape, finish, first_text, python, supervised, turn, until
from server.prompted import is_alive, prompted_codex

from bridge.appserver.calls import MAX_CALLS
from bridge.appserver.child import Child
from bridge.appserver.process import STDERR_KEPT
from bridge.appserver.stream import TurnStream
from bridge.appserver.thread_cache import KeepThread
from bridge.appserver.turn import ChildSettings, Limits
from bridge.core.collect import Result
from bridge.core.events import Finished, TextDelta, TurnEvent
from bridge.core.items import FunctionCall, FunctionOutput, FunctionTool, Text
from bridge.core.stages import StagedStream
from bridge.core.turn import Turn
from bridge.errors import BridgeError

Dialect = Literal["current", "legacy"]
BOTH = pytest.mark.parametrize("dialect", ["current", "legacy"])


def kept(child: Child, stream: TurnStream) -> StagedStream:
    """A turn whose thread is kept after its answer."""
    return StagedStream(stream, [KeepThread(stream.running, child.keep_thread)])


@pytest.fixture
def prompted(tmp_path: Path) -> Program:
    """The child that does what the message says."""
    return Program(prompted_codex(tmp_path), "app-server")


def error_of(result: Result) -> BridgeError:
    """The error that a turn failed with."""
    assert result.end is not None
    assert result.end.outcome == "failed"
    assert result.end.error is not None
    return result.end.error


# What the child writes

GARBAGE = [
    "not json",
    '{"half":',
    "\x1b[31mred\x1b[0m",
    "[1,2]",
    "null",
    '"text"',
    "\ufeff{}",
    "{}",
    '{"method":5}',
    '{"id":999999,"result":{}}',
    '{"id":true,"result":{}}',
    '{"id":1.0,"result":{}}',
    '{"id":"1","error":{"code":1}}',
    '{"method":"item/agentMessage/delta","params":{"threadId":5}}',
    '{"method":"item/agentMessage/delta","params":null}',
    '{"method":"item/agentMessage/delta","params":{"threadId":"another","itemId":"i","delta":"LEAK"}}',
    '{"method":"codex/event/agent_message_content_delta","params":{"conversationId":"another","msg":'
    '{"type":"agent_message_content_delta","item_id":"i","delta":"LEAK"}}}',
    '{"method":"turn/completed","params":{"threadId":"another","turn":{"id":"t","status":"completed"}}}',
    '{"method":"turn/completed","params":[]}',
    '{"method":"some/news","params":{"threadId":"another"}}',
    '{"method":"codex/event/half',
    '{"method":"item/agentMessage/delta","params":{"threadId":"half',
    '{"method":"codex/event/agent_message_content_delta","params":{',
]


@BOTH
async def test_garbage_between_lines_changes_nothing(prompted: Program, dialect: Dialect) -> None:
    """Anything between valid lines leaves the events of the turn unchanged, and is counted."""
    tape = Tape()
    steps = [step for line in GARBAGE for step in ({"deltas": ["x"]}, {"garbage": line})]
    async with supervised(prompted, dialect=dialect, tap=tape.recorder) as supervisor:
        child = await supervisor.acquire()
        result = await finish(child.start(turn(*steps, {"usage": {"input": 1, "output": 2}})))
        assert result.end is not None
        assert result.end.outcome == "completed"
        assert result.text == "x" * len(GARBAGE)
        assert result.usage is not None
        assert result.usage.total == 3
    noted = [record["payload"] for record in tape.records if record["kind"] == "garbage"]
    assert "not json" in noted
    assert supervisor.restarts == 0


@BOTH
async def test_lines_cut_at_every_byte_are_the_same_lines(tmp_path: Path, dialect: Dialect) -> None:
    """A child that writes one byte at a time is understood, text beyond ASCII included."""
    text = 'Grüße — 日本 🙂 \u2028 \\ " end'
    program = Program(scripted_codex(tmp_path, turns([{"text": text, "chunk": 3}], split=1)), "app-server")
    async with supervised(program, dialect=dialect) as supervisor:
        child = await supervisor.acquire()
        result = await finish(child.start(turn(text="hi")))
        assert result.text == text


@BOTH
@pytest.mark.parametrize("logged", [False, True])
async def test_the_answer_is_the_same_with_and_without_a_log(tmp_path: Path, dialect: Dialect, logged: bool) -> None:
    """A child that has one dialect only is found out, and each of its words counts once, however often it says it."""
    program = Program(prompted_codex(tmp_path, dialect), "app-server")
    async with supervised(program, tap=Tape().recorder if logged else None) as supervisor:
        child = await supervisor.acquire()
        assert child.info is not None
        assert child.info.dialect == dialect
        result = await finish(child.start(turn({"deltas": ["one ", "two"]}, {"usage": {}}, {"no_delta": " three"})))
        assert result.text == "one two three"


WAITS_FOR_BOTH = """import sys

sys.path.insert(0, {root!r})
import orjson
import trio
from bridge.appserver.standin import server


class Child(server.Standin):
    kept = {{}}

    async def _receive(self, line):
        message = orjson.loads(line)
        conversation = message.get("params", {{}}).get("conversationId")
        if message["method"] == "sendUserTurn":
            self.kept[conversation] = line
            return
        if message["method"] == "sendUserMessage":
            await super()._receive(self.kept.pop(conversation))
        await super()._receive(line)


trio.run(Child(dialect="legacy").run)
"""
"""A child that answers sendUserTurn when it has got sendUserMessage, not before."""


async def test_both_legacy_calls_are_sent_before_either_is_answered(tmp_path: Path) -> None:
    """Also with more turns than there are slots for calls: the two calls of a turn share one."""
    program = Program(python_program(tmp_path / "codex", WAITS_FOR_BOTH.format(root=str(ROOT))), "app-server")
    tape = Tape()
    ends: list[str] = []
    async with supervised(program, tap=tape.recorder, limits=Limits(rpc=20)) as supervisor:
        child = await supervisor.acquire()

        async def answer(endpoint: Literal["responses", "chat"]) -> None:
            result = await finish(child.start(turn(text="hi", endpoint=endpoint)))
            assert result.end is not None
            ends.append(result.end.outcome)

        with trio.fail_after(15):
            async with trio.open_nursery() as nursery:
                for _ in range(MAX_CALLS):
                    nursery.start_soon(answer, "responses")
                    nursery.start_soon(answer, "chat")
    assert ends == ["completed"] * 2 * MAX_CALLS
    sends = [
        (record["payload"]["params"]["conversationId"], record["method"])
        for record in tape.records
        if record["kind"] == "rpc_request" and record["method"].startswith("sendUser")
    ]
    assert sorted(sends, key=lambda send: send[0]) == [
        (conversation, method)
        for conversation in sorted({conversation for conversation, _ in sends})
        for method in ("sendUserTurn", "sendUserMessage")
    ]


@pytest.mark.parametrize("method", ["sendUserTurn", "sendUserMessage"])
async def test_either_legacy_call_that_is_refused_ends_the_turn(tmp_path: Path, method: str) -> None:
    """At once, however the other one is answered, or whether it is."""
    other = {"sendUserTurn": "sendUserMessage", "sendUserMessage": "sendUserTurn"}[method]
    for mute in ([], [other]):
        script = turns([{"hang": True}], refuse={method: {"code": 5, "message": "No."}}, mute=mute)
        program = Program(scripted_codex(tmp_path, script, dialect="legacy"), "app-server")
        async with supervised(program, limits=Limits(rpc=300)) as supervisor:
            child = await supervisor.acquire()
            with trio.fail_after(30):
                error = error_of(await finish(child.start(turn(text="hi"))))
            assert error.message == f"The Codex app-server refused {method}: No."
            await until(lambda child=child: not child.turns, "all is released")  # type: ignore[misc]


async def test_a_child_with_both_dialects_is_spoken_to_in_the_current_one(prompted: Program) -> None:
    """Whatever version of its own a child that is no Codex names."""
    async with supervised(prompted) as supervisor:
        child = await supervisor.acquire()
        assert child.info is not None
        assert child.info.dialect == "current"


async def test_a_line_beyond_the_limit_costs_its_own_turn_alone() -> None:
    """33 MiB in one line are thrown away; the turn that they belong to fails, its neighbour does not."""
    async with supervised(python(TINY, "huge")) as supervisor:
        child = await supervisor.acquire()
        neighbour = child.start(turn(text="plain"))
        await first_text(neighbour)
        failed = await finish(child.start(turn(text="huge")))
        assert error_of(failed).code == "message_too_large"
        assert (await finish(neighbour)).text.endswith("done")


async def test_a_chatty_stderr_is_drained(prompted: Program) -> None:
    """Megabytes on stderr neither block the child nor stay in memory."""
    line = "y" * 1_000_000
    async with supervised(prompted) as supervisor:
        child = await supervisor.acquire()
        steps = [{"stderr": line} for _ in range(8)]
        result = await finish(child.start(turn(*steps, {"stderr": "the last words"}, {"text": "done"})))
        assert result.text == "done"
        await until(lambda: "the last words" in child.stderr.text(), "the tail of stderr")
        assert len(child.stderr.text()) < 3 * STDERR_KEPT


# What the child asks

ASKED: list[tuple[str, dict[str, Any]]] = [
    ("item/commandExecution/requestApproval", {"decision": "decline"}),
    ("item/fileChange/requestApproval", {"decision": "decline"}),
    ("item/tool/requestUserInput", {"answers": {}}),
    ("mcpServer/elicitation/request", {"action": "decline"}),
    ("execCommandApproval", {"decision": "denied"}),
    ("applyPatchApproval", {"decision": "denied"}),
]


async def test_requests_of_the_child_are_answered_at_once_and_declined(prompted: Program) -> None:
    """Approvals are refused, questions stay empty, unknown requests are errors; the turn goes on."""
    tape = Tape()
    methods = [method for method, _ in ASKED] + ["item/permissions/requestApproval", "item/tool/call", "what/is/this"]
    steps = [{"request": {"method": method, "params": {"command": ["rm", "-rf", "/"]}}} for method in methods]
    async with supervised(prompted, tap=tape.recorder) as supervisor:
        child = await supervisor.acquire()
        result = await finish(child.start(turn(*steps, {"text": "done"})))
        assert result.text == "done"
        await until(lambda: sum(r["kind"] == "server_reply" for r in tape.records) == len(methods), "all replies")
    asked = [record for record in tape.records if record["kind"] == "server_request"]
    replies = {record["method"]: record["payload"] for record in tape.records if record["kind"] == "server_reply"}
    assert [record["method"] for record in asked] == methods
    assert {method: replies[method]["result"] for method, _ in ASKED} == dict(ASKED)
    assert replies["item/tool/call"]["result"]["success"] is False
    assert replies["item/permissions/requestApproval"]["error"]["message"]
    assert replies["what/is/this"]["error"]["code"] == -32601
    for record in asked:
        assert replies[record["method"]]["id"] == record["payload"]["id"]


# Calls of the client's functions, made natively

FIND = FunctionTool("find")
NATIVE = ChildSettings(tool_mode="native")


def turn_with_tools(text: str) -> Turn:
    """A turn for the child that calls."""
    return replace(turn(text=text), tools=(FIND,))


async def test_native_calls_are_given_out_and_the_turn_is_cut() -> None:
    """The child's requests for the results stay open; when its provider is done the turn ends, and is interrupted."""
    tape = Tape()
    async with supervised(python(CALLING), NATIVE, tap=tape.recorder) as supervisor:
        child = await supervisor.acquire()
        assert child.offers_natively(turn_with_tools("two calls"))
        result = await finish(child.start(turn_with_tools("two calls")))
        assert [(call.call_id, call.name, call.arguments) for call in result.calls] == [
            ("call_0", "find", '{ "n": 0 }'),
            ("call_1", "find", '{ "n": 1 }'),
        ]
        assert result.usage is not None
        assert (result.usage.input, result.usage.output) == (11, 7)
        await until(lambda: not child.turns, "the turn is let go")
    assert tape.calls()[-3:] == ["turn/start", "turn/interrupt", "thread/unsubscribe"]
    kinds = [record["kind"] for record in tape.records]
    assert kinds.count("server_request") == 2
    assert "server_reply" not in kinds


async def test_a_client_that_leaves_while_calls_are_open() -> None:
    """The turn is interrupted, whatever the child still waits for, and the next one runs."""
    tape = Tape()
    async with supervised(python(CALLING), NATIVE, tap=tape.recorder) as supervisor:
        child = await supervisor.acquire()
        stream = child.start(turn_with_tools("calls without end"))
        await first_text(stream)
        stream.close()
        await until(lambda: not child.turns, "the turn is let go")
        assert tape.calls()[-2:] == ["turn/interrupt", "thread/unsubscribe"]
        assert len((await finish(child.start(turn_with_tools("two calls")))).calls) == 2


async def test_a_provider_that_never_ends_its_calls_fails_the_turn() -> None:
    """Silence after a call is silence: the turn fails in time."""
    async with supervised(python(CALLING), NATIVE, limits=Limits(idle=0.2)) as supervisor:
        child = await supervisor.acquire()
        result = await finish(child.start(turn_with_tools("calls without end")))
        assert error_of(result).code == "backend_timeout"


KEEPING = replace(NATIVE, kept_threads=4)


def with_outputs(first: Turn) -> Turn:
    """The request after two calls, with their outputs."""
    calls = [FunctionCall(f"call_{n}", "find", f'{{ "n": {n} }}') for n in range(2)]
    outputs = [FunctionOutput(f"call_{n}", (Text("found"),)) for n in range(2)]
    return replace(first, items=(*first.items, *calls, *outputs))


async def test_a_client_that_leaves_as_soon_as_it_resumes_a_turn() -> None:
    """The turn that waited is stopped: no one else will answer it."""
    tape, first = Tape(), turn_with_tools("two calls")
    async with supervised(python(CALLING), KEEPING, tap=tape.recorder) as supervisor:
        child = await supervisor.acquire()
        await finish(kept(child, child.start(first)))
        await until(lambda: not child.turns, "the turn is kept")
        assert tape.calls()[-1] == "turn/start"
        child.start(with_outputs(first)).close()
        await until(lambda: not child.turns, "the turn is let go")
    assert tape.calls()[-2:] == ["turn/interrupt", "thread/unsubscribe"]


async def test_a_turn_that_ends_while_it_waits_is_not_resumed() -> None:
    """Its outputs would reach no one; the conversation gets another thread."""
    tape, first = Tape(), turn_with_tools("two calls, then the end")
    async with supervised(python(CALLING), KEEPING, tap=tape.recorder) as supervisor:
        child = await supervisor.acquire()
        await finish(kept(child, child.start(first)))
        await until(lambda: tape.calls()[-1] == "thread/unsubscribe", "the thread is let go")
        assert "turn/interrupt" not in tape.calls()
        await finish(child.start(with_outputs(first)))
    assert tape.calls().count("thread/start") == 2


async def test_a_call_that_was_refused_meanwhile_is_not_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """Codex got the answer that there is no such tool, so it can no longer get the client's output."""
    monkeypatch.setattr("bridge.appserver.calls.PARKED", 0.01)
    tape, first = Tape(), turn_with_tools("two calls, the end after a reply")
    async with supervised(python(CALLING), KEEPING, tap=tape.recorder) as supervisor:
        child = await supervisor.acquire()
        assert len((await finish(kept(child, child.start(first)))).calls) == 2
        await until(lambda: not child.turns, "the turn is let go")
    assert tape.calls()[-2:] == ["turn/interrupt", "thread/unsubscribe"]


@pytest.mark.parametrize(
    ("settings", "text", "tools"),
    [(ChildSettings(), "two calls", True), (NATIVE, "two calls", False), (NATIVE, "calls of another thread", True)],
    ids=["in text", "no functions", "another thread"],
)
async def test_calls_without_a_waiting_client_are_answered(settings: ChildSettings, text: str, tools: bool) -> None:
    """No request is left open but those of a turn with native tools: it would stall for ever."""
    tape = Tape()
    async with supervised(python(CALLING), settings, tap=tape.recorder) as supervisor:
        child = await supervisor.acquire()
        stream = child.start(turn_with_tools(text) if tools else turn(text=text))
        await until(lambda: [r["kind"] for r in tape.records].count("server_reply") == 2, "both replies")
        stream.close()
        await until(lambda: not child.turns, "the turn is let go")
    replies = [record["payload"] for record in tape.records if record["kind"] == "server_reply"]
    assert [reply["result"]["success"] for reply in replies] == [False, False]


async def test_a_child_without_native_tools_is_offered_them_in_text(
    prompted: Program, caplog: pytest.LogCaptureFixture
) -> None:
    """And the operator sees a warning."""
    async with supervised(prompted, NATIVE) as supervisor:
        child = await supervisor.acquire()
        assert not child.offers_natively(turn_with_tools("two calls"))
    assert "no native tools" in caplog.text


# What the child reports about itself


async def test_rate_limits_are_learnt_from_the_child() -> None:
    """An update replaces what it names and leaves the rest; what is no update changes nothing."""
    primary, secondary = {"usedPercent": 5}, {"usedPercent": 1}
    updates = [
        {"rateLimits": {"primary": {"usedPercent": 2}, "secondary": secondary, "planType": "plus"}},
        {"rateLimits": {"primary": primary, "secondary": None}},
        {"rateLimits": None},
        {},
    ]
    async with supervised(python(CALLING)) as supervisor:
        child = await supervisor.acquire()
        assert child.account.rate_limits == {}
        notes = [{"method": "account/rateLimits/updated", "params": update} for update in updates]
        await finish(child.start(turn(text=json.dumps(notes))))
        assert child.account.rate_limits == {"primary": primary, "secondary": secondary, "planType": "plus"}
        assert await child.account.read_rate_limits() == {**child.account.rate_limits, "planType": "pro"}


async def test_rate_limits_that_the_child_refuses_to_tell_are_the_last_known_ones(prompted: Program) -> None:
    """Without a login Codex answers with an error; another child does not even know the question."""
    async with supervised(python(CALLING, "no-limits")) as supervisor:
        child = await supervisor.acquire()
        note = {"method": "account/rateLimits/updated", "params": {"rateLimits": {"planType": "plus"}}}
        await finish(child.start(turn(text=json.dumps([note]))))
        assert await child.account.read_rate_limits() == {"planType": "plus"}
    async with supervised(prompted) as supervisor:
        assert await (await supervisor.acquire()).account.read_rate_limits() == {}


@pytest.mark.parametrize("method", ["account/updated", "account/login/completed"])
async def test_another_account_may_have_other_models(method: str) -> None:
    """They and the login are asked for again; a list that comes back empty does not replace one that was not."""
    async with supervised(python(CALLING)) as supervisor:
        child = await supervisor.acquire()
        assert [model["id"] for model in child.account.models] == ["model-1"]
        assert child.account.login == "logged_in"
        news = {"method": method, "params": {}}
        await finish(child.start(turn(text=json.dumps([news]))))
        await until(lambda: [model["id"] for model in child.account.models] == ["model-2"], "the new list")
        await finish(child.start(turn(text=json.dumps([news]))))
        await until(lambda: child.account.login == "missing", "the login was asked for again")
        assert [model["id"] for model in child.account.models] == ["model-2"]


# What the child does not do


@BOTH
async def test_silence_ends_a_turn(prompted: Program, dialect: Dialect) -> None:
    """No first word, no further word, or no end: the turn fails in time as backend_timeout and is interrupted."""
    tape = Tape()
    limits = Limits(first_event=3, idle=3, turn=6)
    endless = [{"deltas": ["x"]}, {"sleep": 0.1}] * 100
    async with supervised(prompted, dialect=dialect, limits=limits, tap=tape.recorder) as supervisor:
        child = await supervisor.acquire()
        async with trio.open_nursery() as nursery:
            results: dict[str, Result] = {}

            async def run(name: str, *steps: Any) -> None:
                results[name] = await finish(child.start(turn(*steps)))

            nursery.start_soon(run, "first", {"hang": True})
            nursery.start_soon(run, "idle", {"text": "one"}, {"hang": True})
            nursery.start_soon(run, "turn", *endless)
        assert {error_of(result).code for result in results.values()} == {"backend_timeout"}
        assert "did not begin" in error_of(results["first"]).message
        assert "nothing more" in error_of(results["idle"]).message
        assert "longer than 6 s" in error_of(results["turn"]).message
        assert results["idle"].text == "one"
        await until(lambda: not child.turns, "all turns are let go")
    stopped = "turn/interrupt" if dialect == "current" else "interruptConversation"
    assert tape.calls().count(stopped) == 3


async def test_an_event_may_come_in_the_moment_in_which_its_consumer_is_cancelled(prompted: Program) -> None:
    """The consumer is on its way out already, and must not be woken a second time. Nothing is lost."""
    async with supervised(prompted) as supervisor:
        stream = (await supervisor.acquire()).start(turn({"text": "one"}, {"hang": True}))
        events: list[TurnEvent] = []
        while not any(isinstance(event, TextDelta) for event in events):
            events += await stream.next()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.next)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            stream.running.fail(BridgeError("broken"))
            stream.running.wake()
        while not isinstance(events[-1], Finished):
            events += await stream.next()
        assert events[-1].outcome == "failed"
        stream.close()


async def test_a_turn_that_has_all_but_its_end_is_over_soon(prompted: Program) -> None:
    """When the message is complete and its usage is reported, the turn is interrupted. Before that the bridge waits."""
    tape = Tape()
    limits = Limits(first_event=30, idle=3, tail=2)
    usage = {"usage": {"input": 7, "output": 3, "cached": 0, "reasoning": 0}}
    async with supervised(prompted, limits=limits, tap=tape.recorder) as supervisor:
        child = await supervisor.acquire()
        whole = await finish(child.start(turn({"text": "one"}, usage, {"hang": True})))
        assert whole.end is not None
        assert (whole.text, whole.end.outcome) == ("one", "completed")
        assert whole.usage is not None
        more = await finish(child.start(turn({"text": "one"}, usage, {"text": "two"}, {"hang": True})))
        assert error_of(more).code == "backend_timeout"
        await until(lambda: not child.turns, "all turns are let go")
    assert tape.calls().count("turn/interrupt") == 2


@BOTH
async def test_an_error_without_an_end_ends_the_turn(prompted: Program, dialect: Dialect) -> None:
    """It fails with that error, long before it would fail of silence, and is interrupted. What was said is kept."""
    tape = Tape()
    refused = {"error": {"message": "input must not be empty", "info": "badRequest", "ends": False}}
    limits = Limits(first_event=120, idle=300, after_error=0.5)
    async with supervised(prompted, dialect=dialect, limits=limits, tap=tape.recorder) as supervisor:
        child = await supervisor.acquire()
        with trio.fail_after(20):
            for steps in ([refused], [{"text": "one"}, refused]):
                result = await finish(child.start(turn(*steps, {"hang": True})))
                error = error_of(result)
                assert (error.http_status, error.message) == (400, "input must not be empty")
                assert result.text == ("one" if len(steps) > 1 else "")
            await until(lambda: not child.turns, "all turns are let go")
    stopped = "turn/interrupt" if dialect == "current" else "interruptConversation"
    assert tape.calls().count(stopped) == 2


async def test_a_child_that_answers_no_call_is_replaced() -> None:
    """Each call has its deadline; after three in a row without an answer the child is started again."""
    async with supervised(python(TINY, "mute"), limits=Limits(rpc=5)) as supervisor:
        child = await supervisor.acquire()
        for waiting in [child.start(turn(text="hi")) for _ in range(3)]:
            assert error_of(await finish(waiting)).code == "backend_timeout"
        await until(lambda: supervisor.restarts == 1, "a restart")
        assert not is_alive(child.process.pid)


async def test_a_child_that_does_not_read_stalls_no_other_task() -> None:
    """With its pipe full, calls run into their deadline; what the child says is still read."""
    async with supervised(python(TINY, "deaf"), limits=Limits(rpc=5)) as supervisor:
        child = await supervisor.acquire()
        speaking = child.start(turn(text="deaf"))
        await first_text(speaking)
        failed = await finish(child.start(turn(text="x" * 2_000_000)))
        assert error_of(failed).code in ("backend_timeout", "backend_crashed")
        assert (await finish(speaking)).text


# What the child refuses


@pytest.mark.parametrize(
    ("dialect", "method"),
    [("current", "thread/start"), ("current", "turn/start"), ("legacy", "newConversation")],
)
async def test_a_refused_call_fails_its_turn_with_the_reason(tmp_path: Path, dialect: Dialect, method: str) -> None:
    """The child's own words reach the client; the child stays."""
    refusal = {"code": -32600, "message": "not on a Sunday"}
    program = Program(scripted_codex(tmp_path, turns([{"text": "hi"}], refuse={method: refusal})), "app-server")
    async with supervised(program, dialect=dialect) as supervisor:
        child = await supervisor.acquire()
        error = error_of(await finish(child.start(turn(text="hi"))))
        assert (error.code, error.http_status) == ("backend_error", 502)
        assert method in error.message
        assert "not on a Sunday" in error.message
        assert supervisor.child is child


async def test_a_call_to_an_overloaded_child_is_retried() -> None:
    """-32001 before anything was said is not the client's concern."""
    tape = Tape()
    async with supervised(python(TINY, "overloaded:2"), tap=tape.recorder) as supervisor:
        child = await supervisor.acquire()
        result = await finish(child.start(turn(text="plain")))
        assert result.text == "hello done"
    assert tape.calls().count("turn/start") == 3


async def test_a_lasting_overload_is_reported() -> None:
    """After three more attempts the turn fails as overloaded, which clients may try again later."""
    tape = Tape()
    async with supervised(python(TINY, "overloaded:99"), tap=tape.recorder) as supervisor:
        child = await supervisor.acquire()
        error = error_of(await finish(child.start(turn(text="plain"))))
    assert tape.calls().count("turn/start") == 4
    assert (error.code, error.http_status, error.severity) == ("overloaded", 503, "transient")


# The end of the child


@pytest.mark.parametrize(
    ("words", "end"),
    [(0, {"exit": 0}), (1, {"signal": 9}), (5, {"exit": 1})],
    ids=["at_once", "killed", "in_the_middle"],
)
async def test_a_death_in_a_turn_fails_all_its_turns(prompted: Program, words: int, end: dict[str, int]) -> None:
    """Three turns run when the child dies at some word: all fail as backend_crashed, and the next child serves."""
    async with supervised(prompted) as supervisor:
        child = await supervisor.acquire()
        others = [child.start(turn({"text": "one"}, {"hang": True})) for _ in range(2)]
        for stream in others:
            await first_text(stream)
        dying = child.start(turn(*[{"deltas": ["x"]}] * words, end))
        with trio.fail_after(10):
            results = [await finish(stream) for stream in (dying, *others)]
        for result in results:
            error = error_of(result)
            assert (error.code, error.http_status, error.severity) == ("backend_crashed", 502, "transient")
        assert len(results[0].text) <= words
        following = await supervisor.acquire()
        assert following is not child
        assert (await finish(following.start(turn({"text": "hi"})))).text == "hi"


async def test_a_closed_stdout_is_a_death(prompted: Program) -> None:
    """A child that lives on without its output is ended and replaced."""
    async with supervised(prompted) as supervisor:
        child = await supervisor.acquire()
        with trio.fail_after(10):
            failed = await finish(child.start(turn({"text": "one"}, {"close_stdout": True}, {"hang": True})))
        assert error_of(failed).code == "backend_crashed"
        assert (await finish((await supervisor.acquire()).start(turn({"text": "hi"})))).text == "hi"
        assert not is_alive(child.process.pid)


async def test_a_death_is_seen_though_a_grandchild_holds_the_pipe(tmp_path: Path) -> None:
    """A process that the child has left behind with its stdout does not hide the child's end."""
    inner = prompted_codex(tmp_path)
    outer = tmp_path / "codex-with-company"
    outer.write_text(f"#!/bin/sh\nsleep 1000 &\nexec {inner} app-server\n")
    outer.chmod(0o755)
    async with supervised(Program(outer)) as supervisor:
        child = await supervisor.acquire()
        with trio.fail_after(10):
            failed = await finish(child.start(turn({"text": "one"}, {"exit": 1})))
        assert error_of(failed).code == "backend_crashed"


# Letting go


@BOTH
async def test_a_turn_that_is_let_go_is_interrupted_and_freed(prompted: Program, dialect: Dialect) -> None:
    """A consumer that leaves costs the child one interrupt and one release; a finished turn the release alone."""
    tape = Tape()
    async with supervised(prompted, dialect=dialect, tap=tape.recorder) as supervisor:
        child = await supervisor.acquire()
        stream = child.start(turn({"text": "one"}, {"hang": True}))
        await first_text(stream)
        assert child.turns == 1
        stream.close()
        await until(lambda: not child.turns, "the turn is let go")
        left, finished = tape.calls(), len(tape.calls())
        await finish(child.start(turn({"text": "hi"})))
        await until(lambda: not child.turns, "the turn is let go")
    stop, free = {
        "current": ("turn/interrupt", "thread/unsubscribe"),
        "legacy": ("interruptConversation", "removeConversationListener"),
    }[dialect]
    assert left[-2:] == [stop, free]
    assert tape.calls()[finished:][-1] == free
    assert tape.calls().count(stop) == 1


async def test_many_turns_at_once_do_not_mix(prompted: Program) -> None:
    """Sixty-four turns in one child, each with words of its own."""
    async with supervised(prompted) as supervisor:
        child = await supervisor.acquire()
        texts: dict[int, str] = {}

        async def run(number: int) -> None:
            steps = [step for word in range(20) for step in ({"deltas": [f"{number}:{word} "]}, {"sleep": 0})]
            texts[number] = (await finish(child.start(turn(*steps)))).text

        async with trio.open_nursery() as nursery:
            for number in range(64):
                nursery.start_soon(run, number)
        for number, text in texts.items():
            assert text == "".join(f"{number}:{word} " for word in range(20))
        await until(lambda: child.idle.is_set(), "idle")


CALLING = """
import json, sys

prompts = {}
listed = 0
asked = 0


def say(**message):
    sys.stdout.write(json.dumps(message, separators=(",", ":")) + "\\n")
    sys.stdout.flush()


def complete(thread, status):
    turn = {"id": "t", "status": status, "items": [{"type": "agentMessage", "id": "m", "text": "done"}]}
    say(method="turn/completed", params={"threadId": thread, "turn": turn})


def end_calls(thread):
    usage = {"inputTokens": 11, "outputTokens": 7}
    say(method="rawResponse/completed", params={"threadId": thread, "turnId": "t", "usage": usage})


for line in sys.stdin:
    message = json.loads(line)
    if message.get("id") == 0 and "result" in message and "after a reply" in prompt:
        end_calls(thread)
    if "id" not in message or "method" not in message:
        continue
    number, method, params = message["id"], message["method"], message.get("params") or {}
    thread = params.get("threadId", "")
    if method == "initialize":
        say(id=number, result={"userAgent": "turnbridge/0.163.0 (test)"})
    elif method == "bridge/probe":
        known = "`thread/start` `thread/inject_items` `turn/start` `model/list` `account/read` "
        known += "`account/rateLimits/read`"
        say(id=number, error={"code": -32600, "message": "expected one of " + known})
    elif method == "model/list":
        listed += 1
        say(id=number, result={"data": [{"id": "model-%d" % listed}] if listed < 3 else []})
    elif method == "account/read":
        account = {"type": "chatgpt"} if listed < 3 else None
        say(id=number, result={"account": account, "requiresOpenaiAuth": True})
    elif method == "account/rateLimits/read" and sys.argv[1:]:
        say(id=number, error={"code": -32600, "message": "chatgpt authentication required"})
    elif method == "account/rateLimits/read":
        say(id=number, result={"rateLimits": {"planType": "pro"}})
    elif method == "thread/start":
        say(id=number, result={"thread": {"id": "thread-%d" % number}})
    elif method == "thread/inject_items":
        prompts[thread] = params["items"][0]["content"][0]["text"]
        say(id=number, result={})
    elif method == "turn/start":
        say(id=number, result={"turn": {"id": "t"}})
        say(method="turn/started", params={"threadId": thread, "turn": {"id": "t"}})
        prompt, here = prompts[thread], {"threadId": thread, "turnId": "t"}
        if prompt.startswith("["):
            for note in json.loads(prompt):
                say(**note)
            complete(thread, "completed")
            continue
        for call in range(2):
            ids = {"id": "fc_%d" % call, "call_id": "call_%d" % call}
            item = {"type": "function_call", "name": "find", "arguments": '{ "n": %d }' % call, **ids}
            say(method="rawResponseItem/completed", params={**here, "item": item})
            whose = "another" if "another" in prompt else thread
            say(method="item/tool/call", id=asked, params={"threadId": whose, "turnId": "t", "callId": item["call_id"]})
            asked += 1
        if "without end" not in prompt and "after a reply" not in prompt:
            end_calls(thread)
        if "then the end" in prompt:
            complete(thread, "interrupted")
    elif method == "turn/interrupt":
        say(id=number, result={})
        complete(thread, "interrupted")
    else:
        say(id=number, result={})
"""
"""A child that passes for a Codex, of few lines. Each turn calls `find` twice, or says the notes of its prompt."""

TINY = """
import json, sys, time

fault, _, count = sys.argv[1].partition(":")
refusals = int(count or 0)
prompts = {}


def say(**message):
    sys.stdout.write(json.dumps(message, separators=(",", ":")) + "\\n")
    sys.stdout.flush()


def delta(thread, text):
    say(method="item/agentMessage/delta", params={"threadId": thread, "turnId": "t", "itemId": "i", "delta": text})


def complete(thread):
    delta(thread, "done")
    say(method="turn/completed", params={"threadId": thread, "turn": {"id": "t", "status": "completed"}})


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    number, method, params = message["id"], message["method"], message.get("params", {})
    thread = params.get("threadId", "")
    if method == "bridge/probe":
        known = "`thread/start` `thread/inject_items` `turn/start` `turn/interrupt` `thread/unsubscribe`"
        say(id=number, error={"code": -32600, "message": "expected one of " + known})
    elif fault == "mute" and method == "thread/start":
        pass
    elif method == "thread/start":
        say(id=number, result={"thread": {"id": "thread-%d" % number}})
    elif method == "thread/inject_items":
        prompts[thread] = params["items"][0]["content"][0]["text"]
        say(id=number, result={})
    elif method == "turn/start" and refusals:
        refusals -= 1
        say(id=number, error={"code": -32001, "message": "Server overloaded; retry later."})
    elif method == "turn/start":
        say(id=number, result={"turn": {"id": "t"}})
        delta(thread, "hello ")
        if fault == "huge" and prompts[thread] == "plain":
            waiting = thread
        elif fault == "huge":
            delta(thread, "x" * (33 << 20))
            complete(thread)
            complete(waiting)
        elif fault == "deaf":
            time.sleep(3)
            complete(thread)
            time.sleep(60)
        else:
            complete(thread)
    else:
        say(id=number, result={})
"""
"""A child of few lines that starts at once.

`huge` writes a line that is too long, `deaf` stops reading, `mute` begins no thread, `overloaded:n` refuses n turns.
"""
