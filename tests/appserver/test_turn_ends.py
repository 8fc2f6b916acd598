"""Every turn gets its end, whatever happens to its child, and leaves nothing behind in it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import trio
from server.inprocess import Program, Tape, finish, first_text, supervised, turn, until
from server.prompted import prompted_codex

from bridge.appserver.calls import MAX_CALLS
from bridge.appserver.turn import Limits


@pytest.fixture
def prompted(tmp_path: Path) -> Program:
    """The child that does what the message says."""
    return Program(prompted_codex(tmp_path), "app-server")


async def test_a_hung_child_takes_its_turns_with_it(prompted: Program) -> None:
    """Three calls without an answer, and the running turn fails at once instead of waiting for its own deadline."""
    async with supervised(prompted, limits=Limits(rpc=4, idle=300)) as supervisor:
        child = await supervisor.acquire()
        stream = child.start(turn({"text": "one"}, {"hang": True}))
        assert await first_text(stream)
        os.kill(child.process.pid, signal.SIGSTOP)
        others = [child.start(turn({"text": "never"})) for _ in range(3)]
        with trio.fail_after(30):
            for waiting in (stream, *others):
                result = await finish(waiting)
                assert result.end is not None
                assert result.end.outcome == "failed"
            # On a busy machine the next child takes longer to start than `acquire` waits.
            await until(lambda: supervisor.child not in (None, child), "the next child is ready")
            assert (await finish((await supervisor.acquire()).start(turn({"text": "again"})))).text == "again"


async def test_turns_that_wait_for_a_slot_fail_with_their_child(prompted: Program) -> None:
    """More turns than calls may be in flight, and the child dies before their first call is made."""
    async with supervised(prompted) as supervisor:
        child = await supervisor.acquire()
        os.kill(child.process.pid, signal.SIGSTOP)
        streams = [child.start(turn({"text": "never"})) for _ in range(MAX_CALLS + 36)]
        await trio.testing.wait_all_tasks_blocked()
        os.kill(child.process.pid, signal.SIGKILL)
        with trio.fail_after(10):
            for stream in streams:
                result = await finish(stream)
                assert result.end is not None
                assert result.end.error is not None
                assert result.end.error.code == "backend_crashed"


async def test_the_log_keeps_nothing_of_a_turn_that_is_over(prompted: Program) -> None:
    """What the recorder remembers of a thread is forgotten with it, also what came after the answer."""
    tape = Tape()
    async with supervised(prompted, tap=tape.recorder) as supervisor:
        child = await supervisor.acquire()
        for _ in range(5):
            await finish(child.start(turn({"text": "hi"}), "req_x"))
        await until(lambda: not child.turns, "all is let go")
        assert tape.recorder.threads == 0
