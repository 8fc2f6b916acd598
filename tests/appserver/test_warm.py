"""Threads that are started ahead: which turn gets one, and what becomes of the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from server.inprocess import Program, Tape, finish, supervised, turn, until
from server.prompted import prompted_codex

from bridge.appserver.connection import Reply
from bridge.appserver.thread_cache import AHEAD, WARM_SECONDS, WarmThreads
from bridge.appserver.turn import Call, ChildSettings
from bridge.errors import BackendProtocolError

ONE, TWO, THREE = b"1", b"2", b"3"
WARM = ChildSettings(warm_threads=2)


def started(name: str) -> Reply:
    return Reply({"thread": {"id": name}})


def ask(threads: WarmThreads, digest: bytes) -> list[Reply]:
    """What a turn with these parameters gets: nothing yet where it has to start a thread itself, or to wait."""
    replies: list[Reply] = []
    threads.take(Call("thread/start", {"digest": digest.decode()}, warm=digest), replies.append)
    return replies


def test_one_thread_is_ready_for_the_next_turn_like_the_last() -> None:
    threads = WarmThreads(2)
    assert ask(threads, ONE) == []
    assert threads.begin(ONE) == {"digest": "1"}
    assert threads.begin(ONE) is None, "one is enough"
    assert threads.started(ONE, started("a"), 0) == []
    assert threads.begin(ONE) is None
    assert ask(threads, TWO) == [], "other parameters are another thread"
    [reply] = ask(threads, ONE)
    assert reply.result == {"thread": {"id": "a"}, AHEAD: True}
    assert ask(threads, ONE) == [], "a thread is one turn's"


def test_a_turn_waits_for_the_thread_that_is_being_started() -> None:
    threads = WarmThreads(2)
    ask(threads, ONE)
    threads.begin(ONE)
    replies: list[Reply] = []
    assert threads.take(Call("thread/start", {}, warm=ONE), replies.append)
    assert not threads.take(Call("thread/start", {}, warm=ONE), replies.append), "and only one turn does"
    assert threads.started(ONE, started("a"), 0) == []
    assert [reply.result for reply in replies] == [{"thread": {"id": "a"}}]
    assert len(threads) == 0


def test_a_waiting_turn_gets_the_error() -> None:
    refusal = Reply(error=BackendProtocolError("no"))
    for answer, message in ((refusal, "no"), (Reply({"thread": 5}), "Unexpected reply to thread/start")):
        threads = WarmThreads(2)
        ask(threads, ONE)
        threads.begin(ONE)
        replies = ask(threads, ONE)
        assert threads.started(ONE, answer, 0) == []
        [reply] = replies
        assert reply.error is not None
        assert reply.error.message.startswith(message)


def test_threads_for_other_parameters_give_way() -> None:
    threads = WarmThreads(2)
    for digest in (ONE, TWO):
        ask(threads, digest)
        threads.begin(digest)
        assert threads.started(digest, started(digest.decode()), 0) == []
    ask(threads, THREE)
    threads.begin(THREE)
    assert threads.started(THREE, started("3"), 0) == ["1"]
    assert len(threads) == 2
    assert threads.begin(ONE) is None, "its parameters are forgotten"


def test_threads_expire() -> None:
    threads = WarmThreads(2)
    ask(threads, ONE)
    threads.begin(ONE)
    threads.started(ONE, started("a"), 5)
    assert threads.deadline() == 5 + WARM_SECONDS
    assert threads.expire(5 + WARM_SECONDS - 1) == []
    assert threads.expire(5 + WARM_SECONDS) == ["a"]
    assert threads.deadline() == float("inf")


def test_nothing_is_started_ahead_where_it_is_switched_off() -> None:
    threads = WarmThreads(0)
    assert ask(threads, ONE) == []
    assert threads.begin(ONE) is None


def said(**more: Any) -> Any:
    return replace(turn({"text": "hi"}), **more)


async def test_the_next_conversation_needs_no_start(tmp_path: Path) -> None:
    """The history and the turn follow at once; other instructions get a thread of their own."""
    tape = Tape()
    program = Program(prompted_codex(tmp_path), "app-server")
    async with supervised(program, WARM, dialect="current", tap=tape.recorder) as supervisor:
        child = await supervisor.acquire()
        assert (await finish(child.start(said()))).text == "hi"
        await until(lambda: tape.calls()[-2:] == ["thread/unsubscribe", "thread/start"], "one is started ahead")
        await until(lambda: len(child.warm) == 1, "it is there")
        before = len(tape.calls())
        assert (await finish(child.start(said()))).text == "hi"
        assert tape.calls()[before : before + 2] == ["thread/inject_items", "turn/start"]
        await until(lambda: len(child.warm) == 1, "the next one is there")
        before = len(tape.calls())
        assert (await finish(child.start(said(instructions="be brief")))).text == "hi"
        assert tape.calls()[before : before + 3] == ["thread/start", "thread/inject_items", "turn/start"]


async def test_a_thread_that_the_child_has_forgotten_is_replaced(tmp_path: Path) -> None:
    tape = Tape()
    program = Program(prompted_codex(tmp_path), "app-server")
    async with supervised(program, WARM, dialect="current", tap=tape.recorder) as supervisor:
        child = await supervisor.acquire()
        assert (await finish(child.start(said()))).text == "hi"
        await until(lambda: len(child.warm) == 1, "one is started ahead")
        replies = [each for each in tape.records if each["kind"] == "rpc_response" and each["method"] == "thread/start"]
        await child.call("thread/unsubscribe", {"threadId": replies[-1]["payload"]["result"]["thread"]["id"]})
        before = len(tape.calls())
        assert (await finish(child.start(said()))).text == "hi"
        prompt = ["thread/inject_items", "turn/start"]
        assert tape.calls()[before : before + 5] == [*prompt, "thread/start", *prompt]
