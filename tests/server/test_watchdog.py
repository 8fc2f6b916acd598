"""The event loop is watched: how late it is, and where it is stuck."""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from harness import running_bridge
from server.inprocess import until

from bridge.telemetry import Watchdog

INTERVAL, LIMIT = 0.05, 0.2
"""Seconds: shorter than in the program, but long enough for a machine that has much to do."""


class Listener(logging.Handler):
    """Hears what the watchdog says, from whichever thread."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.heard = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        if "in block_until" in (record.stack_info or ""):
            self.heard.set()


@pytest.fixture
def listener() -> Iterator[Listener]:
    """What the watchdog says during the test."""
    heard, log = Listener(), logging.getLogger("bridge.watchdog")
    log.addHandler(heard)
    yield heard
    log.removeHandler(heard)


def block_until(event: threading.Event, more: float) -> None:
    """What no task may ever do: hold the loop; and for `more` seconds, in which it has been told already."""
    assert event.wait(30)
    time.sleep(more)


def watching() -> int:
    """How many watchdogs look."""
    return sum(thread.name == "loop watchdog" for thread in threading.enumerate())


async def test_a_stuck_loop_is_told_once_with_its_stack(listener: Listener) -> None:
    """The stack names the call that blocks. Then the loop goes on, and the next time is told again."""
    watchdog = Watchdog(interval=INTERVAL, limit=LIMIT)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watchdog.run)
        for _ in range(2):
            listener.heard.clear()
            beats = watchdog.lag.count
            await until(lambda: watchdog.lag.count > beats, "it beats")  # noqa: B023
            block_until(listener.heard, more=INTERVAL + LIMIT)
        nursery.cancel_scope.cancel()
    told = [record for record in listener.records if "in block_until" in (record.stack_info or "")]
    assert len(told) == 2
    assert watchdog.stalls == len(listener.records)
    assert told[0].levelno == logging.WARNING
    assert re.search(r"blocked for \d+\.\d s", told[0].getMessage())


async def test_the_lag_is_measured(listener: Listener) -> None:
    """Also of what is too short to be told."""
    watchdog = Watchdog(interval=INTERVAL, limit=30)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watchdog.run)
        await until(lambda: watchdog.lag.count > 0, "it beats")
        late, beats = watchdog.lag.sum, watchdog.lag.count
        time.sleep(LIMIT)
        await until(lambda: watchdog.lag.count > beats, "the loop goes on")
        assert watchdog.lag.sum - late >= LIMIT - INTERVAL
        nursery.cancel_scope.cancel()
    assert (watchdog.stalls, listener.records) == (0, [])


@pytest.mark.deep
def test_a_process_that_was_stopped_is_not_stuck(tmp_path: Path) -> None:
    """Whoever stops it for a while, and lets it go on, is told nothing."""
    with running_bridge(tmp_path, "--mock-only") as bridge:
        assert bridge.post("/responses", {"model": "mock-echo", "input": "hi"}).status_code == 200
        bridge.process.send_signal(signal.SIGSTOP)
        time.sleep(3)
        bridge.process.send_signal(signal.SIGCONT)
        time.sleep(2)
        assert bridge.post("/responses", {"model": "mock-echo", "input": "hi"}).status_code == 200
    assert "stuck" not in bridge.stderr.read_text()


async def test_a_loop_that_runs_is_left_alone(listener: Listener) -> None:
    """Nothing is said, and the thread ends with the task."""
    watchdog = Watchdog(limit=30)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watchdog.run)
        await until(lambda: watchdog.lag.count >= 1, "it beats")
        assert watching() == 1
        assert not listener.records
        nursery.cancel_scope.cancel()
    await until(lambda: watching() == 0, "the thread is gone")
    assert repr(watchdog).startswith("<Watchdog beats=")
