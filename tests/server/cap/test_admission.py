"""Admission of CAP's turns: clients that leave, cancel or lose their key while the turn waits or is not read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio
from play import JSON, SSE
from server.cap.desk import open_desk, request
from trio.testing import MockClock, wait_all_tasks_blocked

from bridge.app.admission import Admission
from bridge.app.keys import Keyring
from bridge.protocols.cap import CapOptions
from bridge.store.key_store import KeyFile

CLOSE = {"op": "close", "p": None}


def narrow(**more: float) -> Admission:
    """Room for one turn."""
    return Admission(**{"max_turns": 1, "max_queue": 8, "patience": 20, **more})  # type: ignore[arg-type]


async def test_a_waiting_request_gets_the_free_slot(autojump_clock: MockClock) -> None:
    """A request that has waited too long gets a Retry-After."""
    async with open_desk(admission=narrow()) as desk:
        first = desk.ask(request())
        play = await desk.model.play()
        second = desk.ask(request(number=1))
        await wait_all_tasks_blocked()
        third = desk.socket(request(number=2))
        await trio.sleep(10)
        assert len(desk.model.plays) == 1
        play.say("a")
        play.finish()
        following = await desk.model.play(2)
        await third.done.wait()
        assert (third.packets[0]["p"]["code"], third.code) == ("overloaded", 1013)
        following.say("b")
        following.finish()
        assert [(await call.whole()).text for call in (first, second)] == ["a", "b"]


@pytest.mark.parametrize("accept", [SSE, JSON])
async def test_a_waiting_turn_can_be_cancelled(autojump_clock: MockClock, accept: str) -> None:
    async with open_desk(admission=narrow()) as desk:
        desk.ask(request())
        await desk.model.play()
        waiting = desk.ask(request(number=1, conversation_id="c"), accept)
        await wait_all_tasks_blocked()
        before = trio.current_time()
        assert (await desk.delete(request(number=1)["request_id"]).whole()).status == 202
        await waiting.whole()
        assert trio.current_time() - before < 1
        assert waiting.packets == [CLOSE] if accept == SSE else waiting.json["output"]["status"] == "incomplete"
        assert desk.service.admission.waiting == 0


async def test_a_waiting_client_that_leaves_stops_waiting(autojump_clock: MockClock) -> None:
    async with open_desk(admission=narrow(patience=1000), options=CapOptions(grace=5)) as desk:
        desk.ask(request())
        await desk.model.play()
        waiting = desk.ask(request(number=1))
        await wait_all_tasks_blocked()
        waiting.leave()
        await trio.sleep(6)
        assert desk.service.admission.waiting == 0


async def test_a_key_at_its_limit_can_still_cancel(tmp_path: Path) -> None:
    """All other requests of the key have to wait."""
    store = tmp_path / "keys"
    key, _ = KeyFile(store).add("laptop", now=datetime.now(UTC), max_connections=1)
    keyring = Keyring((), KeyFile(store))
    await keyring.refresh()
    async with open_desk(keyring=keyring) as desk:
        call = desk.ask(request(), key=key)
        await desk.model.play()
        assert (await desk.get(key=key).whole()).error == (429, "key_limit_exceeded")
        assert (await desk.delete(key=key).whole()).status == 202
        with trio.fail_after(20):
            assert (await call.whole()).packets == [CLOSE]


@pytest.mark.parametrize("is_read", [True, False])
async def test_a_key_that_is_revoked(tmp_path: Path, is_read: bool) -> None:
    """Its turns end, also one that waits for its reader."""
    # Not on a clock that jumps: files are looked at in threads.
    store = tmp_path / "keys"
    key, _ = KeyFile(store).add("laptop", now=datetime.now(UTC))
    keyring = Keyring((), KeyFile(store))
    await keyring.refresh()
    async with open_desk(keyring=keyring, admission=Admission(keyring)) as desk:
        call = desk.ask(request(), key=key, slow=not is_read)
        play = await desk.model.play()
        for _ in range(1 if is_read else 3000):
            play.say("x" * 1024)
        await wait_all_tasks_blocked()
        KeyFile(store).revoke("laptop")
        await keyring.refresh()
        with trio.fail_after(20):
            await play.closed.wait()
        while not call.done.is_set():
            call.take()
            await wait_all_tasks_blocked()
        assert [packet["op"] for packet in call.packets[-2:]] == ["error", "close"]
        assert call.packets[-2]["p"]["code"] == "unauthorized"
        assert (await desk.get(key=key).whole()).error == (401, "unauthorized")
