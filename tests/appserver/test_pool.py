"""Several children: which one takes a turn."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from server.inprocess import QUICK, Program, finish, first_text, python, turn, until
from server.prompted import prompted_codex

from bridge.appserver.supervisor import FAVOUR, Pool, RestartPolicy, Supervisor
from bridge.appserver.thread_cache import conversation_number
from bridge.appserver.turn import ChildSettings
from bridge.core.items import Item, Message, Text
from bridge.errors import NotReady


def conversations(remainder: int, count: int) -> list[list[Item]]:
    """Some conversations that the child of this number out of two takes."""
    made: list[list[Item]] = [[Message("user", (Text(f"talk {number}"),))] for number in range(50)]
    return [each for each in made if conversation_number(each) % 2 == remainder][:count]


async def test_a_conversation_goes_to_its_child_unless_that_is_much_busier(tmp_path: Path) -> None:
    """Two workers: a conversation's turns go to one of them, others to the other; both are drained at the end."""
    program = Program(prompted_codex(tmp_path), "app-server")
    pool = Pool([Supervisor(program, ChildSettings(), policy=QUICK) for _ in range(2)])
    assert pool.status()[0] == "worker_not_started"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.run)
        await until(lambda: all(supervisor.child for supervisor in pool.supervisors), "two children")
        assert pool.status() == ("handshake_complete", "ready")
        first, second = (supervisor.child for supervisor in pool.supervisors)
        [one, another], [other] = conversations(0, 2), conversations(1, 1)
        assert [await pool.acquire(each) for each in (one, other, another)] == [first, second, first]
        owners, streams = [], []
        for _ in range(FAVOUR + 2):
            child = await pool.acquire(one)
            owners.append(child)
            streams.append(child.start(turn({"text": "one"}, {"hang": True})))
        for stream in streams:
            await first_text(stream)
        assert len(program.starts) == 2
        assert owners == [first] * (FAVOUR + 1) + [second]
        assert pool.turns == FAVOUR + 2
        assert await pool.acquire(other) is second
        streams[0].close()
        await until(lambda: pool.turns == FAVOUR + 1, "a free place")
        assert await pool.acquire(one) is first
        for stream in streams:
            stream.close()
        await pool.drain()
        assert pool.turns == 0
        pool.shut_down()
        with pytest.raises(NotReady):
            await pool.acquire()
        nursery.cancel_scope.cancel()


async def test_one_dead_worker_does_not_stop_the_other(tmp_path: Path) -> None:
    """While one child cannot be started, callers get the other as soon as it is ready."""
    broken = Supervisor(python("raise SystemExit(1)"), ChildSettings(), policy=RestartPolicy(first_delay=60))
    sound = Supervisor(Program(prompted_codex(tmp_path), "app-server"), ChildSettings(), policy=QUICK)
    pool = Pool([broken, sound])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.run)
        with trio.fail_after(20):
            child = await pool.acquire()
        assert (await finish(child.start(turn({"text": "hi"})))).text == "hi"
        await until(lambda: broken.state == "handshake_failed", "the broken worker has failed")
        assert pool.status()[0] == "handshake_complete"
        assert pool.child is child
        nursery.cancel_scope.cancel()
