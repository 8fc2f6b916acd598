"""A child is kept alive within limits, and when it cannot be, the reason is there to read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from harness import ROOT, RunningBridge, python_program, running_bridge, scripted_codex, turns
from server.inprocess import Program, finish, first_text, python, supervised, turn, until
from server.prompted import MODEL, ask, prompted_codex, send_request, wait_for

from bridge.appserver.launch import Command
from bridge.appserver.supervisor import STOP_GRACE, RestartPolicy
from bridge.appserver.turn import ChildSettings, Limits
from bridge.errors import NotReady


class NoProgram:
    """A launcher that has nothing to start, and notes when it was asked."""

    name = "none"

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def command(self) -> Command:
        self.asked.append(trio.current_time())
        raise NotReady("there is no program")

    async def learn(self, info: Any, command: Any) -> bool:
        return False

    async def lacks_roots(self, command: Any) -> bool:
        return False


# Back-off and limit, on a clock that jumps


async def test_starts_are_spaced_out_and_limited(autojump_clock: trio.testing.MockClock) -> None:
    """The pause doubles; after five failures within a minute it is a minute."""
    launcher = NoProgram()
    async with supervised(launcher, policy=RestartPolicy(), jitter=lambda: 0.5) as supervisor:
        await trio.sleep(59)
        pauses = [after - before for before, after in zip(launcher.asked, launcher.asked[1:], strict=False)]
        assert pauses == pytest.approx([0.25, 0.5, 1, 2])
        assert supervisor.state == "degraded"
        assert "5 times" in supervisor.reason
        assert "there is no program" in supervisor.reason
        await trio.sleep(3600)
    asked = launcher.asked
    assert len(asked) > 6
    for start in asked:
        assert sum(start <= moment < start + 60 for moment in asked) <= 6


async def test_the_pause_varies_by_chance(autojump_clock: trio.testing.MockClock) -> None:
    """Several bridges that lost their children together do not start them together again."""
    for chance, pause in ((0.0, 0.1875), (1.0, 0.3125)):
        launcher = NoProgram()
        async with supervised(launcher, policy=RestartPolicy(), jitter=lambda chance=chance: chance):
            await trio.sleep(0.4)
        assert launcher.asked[1] - launcher.asked[0] == pytest.approx(pause)


async def test_a_failed_child_is_reported_to_callers_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """A failed or degraded supervisor makes no caller wait: NotReady, with the reason and when to retry."""
    async with supervised(NoProgram(), policy=RestartPolicy()) as supervisor:
        for pause, state in ((0.01, "handshake_failed"), (30, "degraded")):
            await trio.sleep(pause)
            asked = trio.current_time()
            with pytest.raises(NotReady, match="there is no program") as refused:
                await supervisor.acquire()
            assert trio.current_time() == asked
            assert (refused.value.code, refused.value.http_status) == (state, 503)
            assert refused.value.retry_after


async def test_on_demand_nothing_starts_before_it_is_wanted(autojump_clock: trio.testing.MockClock) -> None:
    """The mock child costs nothing until somebody asks for a mock model."""
    launcher = NoProgram()
    async with supervised(launcher, on_demand=True) as supervisor:
        await trio.sleep(100)
        assert launcher.asked == []
        assert supervisor.state == "worker_not_started"
        with pytest.raises(NotReady):
            await supervisor.acquire()
        assert len(launcher.asked) == 1


# Real children


async def test_a_child_that_exits_before_its_handshake_is_not_ready(tmp_path: Path) -> None:
    """The stand-in's way: startup steps come before the first answer."""
    script = turns([{"text": "hi"}], startup=[{"stderr": "cannot find my configuration"}, {"exit": 3}])
    program = Program(scripted_codex(tmp_path, script), "app-server")
    async with supervised(program, policy=RestartPolicy(first_delay=60)) as supervisor:
        with pytest.raises(NotReady) as refused:
            await supervisor.acquire()
        assert refused.value.code == "handshake_failed"
        assert supervisor.state == "handshake_failed"


async def test_the_reason_always_has_the_last_words_of_the_child() -> None:
    """What it wrote to stderr before its end is what the operator needs to read, every time."""
    program = Program("/bin/sh", "-c", "echo cannot find my configuration >&2; exit 3")
    for _ in range(10):
        async with supervised(program, policy=RestartPolicy(first_delay=60)) as supervisor:
            with trio.fail_after(5), pytest.raises(NotReady, match="cannot find my configuration"):
                await supervisor.acquire()


async def test_a_child_that_ends_at_once_has_failed_at_once() -> None:
    """However early it ends, callers get an error and do not wait for a deadline."""
    for _ in range(5):
        async with supervised(python("raise SystemExit(1)"), policy=RestartPolicy(first_delay=60)) as supervisor:
            with trio.fail_after(5), pytest.raises(NotReady) as refused:
                await supervisor.acquire()
            assert refused.value.code == "handshake_failed"
            assert "starting" not in refused.value.message


async def test_a_handshake_without_an_answer_fails_in_time() -> None:
    """A program that says nothing at all is given up after the deadline of one call, and ended."""
    program = python("import sys; sys.stdin.read()")
    async with supervised(program, limits=Limits(rpc=0.3), policy=RestartPolicy(first_delay=60)) as supervisor:
        await until(lambda: supervisor.state == "handshake_failed", "handshake_failed", 5)
        assert "did not answer initialize within 0.3 s" in supervisor.reason
        with pytest.raises(NotReady, match="initialize"):
            await supervisor.acquire()


async def test_callers_wait_for_a_child_that_is_just_starting(tmp_path: Path) -> None:
    """A request in the first second of the program is served, not refused."""
    program = Program(prompted_codex(tmp_path), "app-server")
    async with supervised(program) as supervisor:
        child = await supervisor.acquire()
        assert supervisor.state == "handshake_complete"
        assert child.info is not None
        assert child.info.dialect == "current"
        assert (await finish(child.start(turn({"text": "hi"})))).text == "hi"


async def test_drain_waits_for_running_turns_and_shut_down_fails_them(tmp_path: Path) -> None:
    """It waits first, then ends; after that no caller gets a child."""
    async with supervised(Program(prompted_codex(tmp_path), "app-server")) as supervisor:
        child = await supervisor.acquire()
        quick = child.start(turn({"text": "one"}, {"sleep": 0.2}, {"text": "two"}))
        assert child.turns == 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(finish, quick)
            await supervisor.drain()
            assert child.turns == 0
        hanging = child.start(turn({"text": "one"}, {"hang": True}))
        await first_text(hanging)
        with trio.move_on_after(0.1) as patience:
            await supervisor.drain()
        assert patience.cancelled_caught
        supervisor.shut_down()
        result = await finish(hanging)
        assert result.end is not None
        assert result.end.error is not None
        assert result.end.error.code == "shutdown_initiated"
        with pytest.raises(NotReady):
            await supervisor.acquire()


# Through the bridge


@pytest.fixture(scope="module", autouse=True)
def dying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBridge, Path]]:
    """A bridge whose child dies at once every time, and the file in which each start leaves a line.

    It is started with the module, so that its pauses pass while other tests run.
    """
    directory = tmp_path_factory.mktemp("dying")
    starts = directory / "starts"
    program = directory / "dying-codex"
    program.write_text(f"#!/bin/sh\necho start >> {starts}\necho 'no such luck: sk-{'c' * 24}' >&2\nexit 7\n")
    program.chmod(0o755)
    with running_bridge(directory, CODEX_BIN=str(program), PROXY_MODELS=MODEL) as bridge:
        yield bridge, starts


def test_without_a_child_the_listener_stays_and_reports_the_reason(dying: tuple[RunningBridge, Path]) -> None:
    """503 with Retry-After and the reason for a turn, 503 for readiness, 200 for being alive; mock models work."""
    bridge, starts = dying
    wait_for(starts.exists, "the first start")
    with bridge.client() as client:
        refused = client.post("/responses", json=ask({"text": "hi"}))
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert "not ready" in refused.json()["error"]["message"]
        ready = client.get(f"{bridge.root}/readyz")
        assert ready.status_code == 503
        assert ready.json()["status"] == "not_ready"
        assert client.get(f"{bridge.root}/healthz").status_code == 200
        assert client.get(f"{bridge.root}/livez").status_code == 200
        assert client.post("/responses", json={"model": "mock-echo", "input": "hi"}).status_code == 200


def test_a_clients_error_has_no_secret_and_no_path(dying: tuple[RunningBridge, Path]) -> None:
    """The child's last words are repeated to clients and to the terminal with secrets removed."""
    bridge, starts = dying
    wait_for(starts.exists, "the first start")
    told = bridge.post("/responses", ask({"text": "hi"})).json()["error"]["message"]
    assert f"sk-{'c' * 24}" not in told
    assert str(starts.parent) not in told
    assert f"sk-{'c' * 24}" not in bridge.stderr.read_text()


def test_a_child_that_always_dies_is_given_up_for_a_while(dying: tuple[RunningBridge, Path]) -> None:
    """After five deaths the bridge is degraded and starts nothing for a minute, for any caller."""
    bridge, starts = dying
    with bridge.client() as client:
        wait_for(lambda: client.get(f"{bridge.root}/readyz").json()["reason"] == "degraded", "degraded", 40)
        for _ in range(20):
            assert client.post("/responses", json=ask({"text": "hi"})).json()["error"]["code"] == "degraded"
        assert client.get(f"{bridge.root}/healthz").json() == {"status": "degraded", "reason": "degraded"}
    assert starts.read_text().count("start") == 5


def test_a_bridge_recovers_from_the_death_of_its_child(tmp_path: Path) -> None:
    """All turns fail at once with 502 or in their stream; the next request waits for the new child and is served."""
    with running_bridge(tmp_path, CODEX_BIN=str(prompted_codex(tmp_path)), PROXY_MODELS=MODEL) as bridge:
        assert bridge.post("/responses", ask({"text": "hi"})).status_code == 200
        with send_request(bridge, "/v1/responses", ask({"text": "one"}, {"hang": True}, stream=True)) as client:
            assert client.recv(1)
            died = bridge.post("/responses", ask({"deltas": ["a", "b"]}, {"exit": 9}))
            assert died.status_code == 502
            assert died.json()["error"]["code"] == "backend_crashed"
            received = b""
            while b"response.failed" not in received:
                received += client.recv(65536)
        assert bridge.post("/responses", ask({"text": "hi"})).status_code == 200
        assert "Traceback" not in bridge.stderr.read_text()


TIDIES_UP = """import signal
import sys
import time

sys.path.insert(0, {root!r})
import trio
from bridge.appserver.standin.server import Standin

signal.signal(signal.SIGTERM, signal.SIG_IGN)
trio.run(Standin().run)
time.sleep({seconds})
open({path!r}, "w").close()
"""
"""A child that takes its time after the end of its stdin."""


@pytest.mark.deep
@pytest.mark.parametrize("native_tools", [False, True])
async def test_codex_with_its_own_tools_gets_longer_to_end(tmp_path: Path, native_tools: bool) -> None:
    """It has commands and MCP servers to stop; a child without any is killed after two seconds."""
    tidied = tmp_path / "tidied"
    text = TIDIES_UP.format(root=str(ROOT), seconds=STOP_GRACE + 1, path=str(tidied))
    program = Program(python_program(tmp_path / "codex", text), "app-server")
    async with supervised(program, ChildSettings(native_tools=native_tools)) as supervisor:
        await supervisor.acquire()
    assert tidied.exists() == native_tools
