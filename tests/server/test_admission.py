"""Room for turns: given, waited for, refused and taken back. The clock is one that jumps."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from bridge.app.admission import Admission, Slot
from bridge.app.keys import Keyring
from bridge.errors import BridgeError, InvalidRequest, KeyLimitReached, NotReady, Overloaded, Unauthorized
from bridge.server.gate import label_of
from bridge.store.key_store import KeyFile

Clock = trio.testing.MockClock
FREE = "a-key-without-limits"


def made(path: Path, name: str = "laptop", **limits: int) -> str:
    """The label of a new key in the store."""
    return KeyFile(path).add(name, now=datetime.now(UTC), **limits)[1].label


class Hall:
    """An admission, and how its requests fare."""

    def __init__(self, path: Path | None = None, **options: float) -> None:
        self.keyring = Keyring([FREE], KeyFile(path) if path else None)
        settings: dict[str, float] = {"max_turns": 2, "max_queue": 8, "patience": 10, **options}
        self.admission = Admission(self.keyring, **settings)  # type: ignore[arg-type]
        self.cut: list[BridgeError] = []

    async def enter(self, label: str = label_of(FREE), *, turns: int = 1, backend: str = "codex") -> Slot:
        return await self.admission.enter(label, backend, turns, self.cut.append)

    async def refusal(self, label: str = label_of(FREE), **options: int) -> BridgeError:
        """The error that a request gets."""
        with pytest.raises(BridgeError) as told:
            await self.enter(label, **options)  # type: ignore[arg-type]
        return told.value


async def test_there_is_room_up_to_the_limit(autojump_clock: Clock) -> None:
    """Of each backend; one that is full is waited for, and then told as such, with when to come again."""
    hall = Hall()
    slots = [await hall.enter(), await hall.enter()]
    await hall.enter(backend="claude")
    began = trio.current_time()
    refused = await hall.refusal()
    assert isinstance(refused, Overloaded)
    assert (refused.http_status, refused.code, refused.severity) == (503, "overloaded", "transient")
    assert refused.retry_after is not None
    assert trio.current_time() - began == pytest.approx(10)
    slots[0].free()
    await hall.enter()
    assert hall.admission.running == 3
    assert hall.admission.waiting == 0


async def test_a_place_is_freed_once(autojump_clock: Clock) -> None:
    """However often it is given back."""
    hall = Hall()
    first, _ = await hall.enter(), await hall.enter()
    first.free()
    first.free()
    await hall.enter()
    assert isinstance(await hall.refusal(), Overloaded)


async def test_who_waits_gets_the_place_in_order(autojump_clock: Clock) -> None:
    """First come, first served; and at once."""
    hall = Hall(max_turns=1)
    slot, order = await hall.enter(), list[int]()

    async def wait(number: int) -> None:
        taken = await hall.enter()
        order.append(number)
        await trio.sleep(1)
        taken.free()

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(wait, number)
            await trio.testing.wait_all_tasks_blocked()
        slot.free()
    assert order == [0, 1, 2, 3]
    assert hall.admission.running == 0


async def test_who_wants_much_does_not_starve(autojump_clock: Clock) -> None:
    """Who asks for one turn stands behind who asked for four before; but not at another backend."""
    hall = Hall(max_turns=4)
    slots, order = [await hall.enter() for _ in range(3)], list[str]()

    async def wait(name: str, turns: int) -> None:
        taken = await hall.enter(turns=turns)
        order.append(name)
        await trio.sleep(1)
        taken.free()

    async with trio.open_nursery() as nursery:
        for name, turns in (("four", 4), ("one", 1), ("two", 2)):
            nursery.start_soon(wait, name, turns)
            await trio.testing.wait_all_tasks_blocked()
        (await hall.enter(backend="claude")).free()
        for slot in slots:
            await trio.testing.wait_all_tasks_blocked()
            assert order == []
            slot.free()
    assert order[0] == "four"
    assert sorted(order) == ["four", "one", "two"]  # those had room at the same time
    assert (hall.admission.running, hall.admission.waiting) == (0, 0)


@pytest.mark.parametrize("how", ["gives up", "is cancelled", "is revoked"])
async def test_who_leaves_the_queue_lets_the_next_one_in(autojump_clock: Clock, tmp_path: Path, how: str) -> None:
    """There may have been room for it all the time."""
    path = tmp_path / "keys.json"
    label = made(path)
    hall = Hall(path, max_turns=4)
    await hall.enter()
    leaving = trio.CancelScope()

    async def want_much() -> None:
        with leaving, pytest.raises(BridgeError):
            await hall.enter(label, turns=4)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(want_much)
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(3)
        nursery.start_soon(hall.enter)
        await trio.testing.wait_all_tasks_blocked()
        assert (hall.admission.running, hall.admission.waiting) == (1, 2)
        if how == "gives up":
            await trio.sleep(8)
        elif how == "is cancelled":
            leaving.cancel()
        else:
            KeyFile(path).revoke("laptop")
            await hall.keyring.refresh()
    assert (hall.admission.running, hall.admission.waiting) == (2, 0)


async def test_nobody_waits_behind_who_has_used_up_his_own(autojump_clock: Clock, tmp_path: Path) -> None:
    """He waits for himself."""
    path = tmp_path / "keys.json"
    label = made(path, max_turns=1)
    hall = Hall(path, max_turns=4)
    slot = await hall.enter(label)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hall.enter, label)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        await hall.enter()
        assert trio.current_time() == began
        slot.free()


async def test_a_full_queue_is_told_at_once(autojump_clock: Clock) -> None:
    """It has an end, and half of it is left to others, whoever fills the rest."""
    hall = Hall(max_turns=1, max_queue=4)
    await hall.enter()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(hall.enter)
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(await hall.refusal(), Overloaded)
        assert trio.current_time() == began
        nursery.cancel_scope.cancel()
    assert hall.admission.waiting == 0


@pytest.mark.parametrize("options", [{"max_queue": 0}, {"patience": 0}])
async def test_there_may_be_no_queue(autojump_clock: Clock, options: dict[str, Any]) -> None:
    hall = Hall(max_turns=1, **options)
    await hall.enter()
    began = trio.current_time()
    assert isinstance(await hall.refusal(), Overloaded)
    assert trio.current_time() == began


async def test_a_client_that_leaves_the_queue_takes_nothing_along(autojump_clock: Clock) -> None:
    """Neither before its turn has come, nor in the moment in which it does."""
    hall = Hall(max_turns=1)
    slot = await hall.enter()
    with trio.move_on_after(1):
        await hall.enter()
    assert hall.admission.waiting == 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hall.enter)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        slot.free()
    assert hall.admission.running <= 1
    with trio.fail_after(1):
        if hall.admission.running == 0:
            await hall.enter()


async def test_several_answers_need_room_for_all(autojump_clock: Clock, tmp_path: Path) -> None:
    """What can never fit is told at once."""
    path = tmp_path / "keys.json"
    label = made(path, max_turns=1)
    hall = Hall(path)
    await hall.enter()
    assert isinstance(await hall.refusal(turns=2), Overloaded)
    began = trio.current_time()
    assert isinstance(await hall.refusal(turns=3), Overloaded)
    few = await hall.refusal(label, turns=2)
    assert isinstance(few, InvalidRequest)
    assert few.param == "n"
    assert trio.current_time() == began


# Keys with limits


async def test_the_turns_of_a_key(autojump_clock: Clock, tmp_path: Path) -> None:
    """429 for its own limit, while others are served; nobody waits behind it."""
    path = tmp_path / "keys.json"
    label = made(path, max_turns=1)
    hall = Hall(path, max_turns=3)
    slot = await hall.enter(label)
    refused: list[BridgeError] = []

    async def wait() -> None:
        refused.append(await hall.refusal(label))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        other = await hall.enter()
        other.free()
        assert trio.current_time() == began
    assert isinstance(refused[0], KeyLimitReached)
    assert (refused[0].http_status, refused[0].kind) == (429, "rate_limit_error")
    assert refused[0].retry_after is not None
    slot.free()
    await hall.enter(label)


async def test_the_requests_of_a_key_in_a_minute(autojump_clock: Clock, tmp_path: Path) -> None:
    """A minute's worth at once, then as time allows; 'retry-after' is exact."""
    path = tmp_path / "keys.json"
    label = made(path, max_requests=3)
    hall = Hall(path)
    for _ in range(3):
        (await hall.enter(label)).free()
    refused = await hall.refusal(label)
    assert isinstance(refused, KeyLimitReached)
    assert refused.retry_after == pytest.approx(20)
    (await hall.enter()).free()
    await trio.sleep(20.001)
    (await hall.enter(label)).free()
    assert isinstance(await hall.refusal(label), KeyLimitReached)
    await trio.sleep(3600)
    for _ in range(3):
        (await hall.enter(label)).free()
    assert isinstance(await hall.refusal(label), KeyLimitReached)


async def test_a_revoked_key_loses_its_slots(tmp_path: Path) -> None:
    """What runs is told to end, what waits is refused, what comes is refused; others go on."""
    path = tmp_path / "keys.json"
    label = made(path, max_turns=1)
    hall = Hall(path)
    slot = await hall.enter(label)
    other = await hall.enter()
    refused: list[BridgeError] = []

    async def wait() -> None:
        refused.append(await hall.refusal(label))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        KeyFile(path).revoke("laptop")
        refused.append(await hall.refusal(label))
    assert [type(error) for error in (*refused, *hall.cut)] == [Unauthorized] * 3
    slot.free()
    other.free()
    assert hall.admission.running == 0


async def test_nobody_waits_for_a_bridge_that_stops(autojump_clock: Clock) -> None:
    """Who waits is told at once, who runs goes on."""
    hall = Hall(max_turns=1)
    slot = await hall.enter()
    refused: list[BridgeError] = []

    async def wait() -> None:
        refused.append(await hall.refusal())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        hall.admission.close()
    refused.append(await hall.refusal())
    assert [(type(error), error.code) for error in refused] == [(NotReady, "shutdown_initiated")] * 2
    assert trio.current_time() == pytest.approx(0, abs=1)
    assert hall.cut == []
    slot.free()


@pytest.mark.parametrize("seed", range(12))
async def test_slots_balance_whatever_happens(autojump_clock: Clock, tmp_path: Path, seed: int) -> None:
    """Many clients that come, stay, leave and give up: never more than the limits, and nothing is left at the end."""
    path = tmp_path / "keys.json"
    limits = {label_of(FREE): 5, made(path, "one", max_turns=1): 1, made(path, "three", max_turns=3): 3}
    hall = Hall(path, max_turns=5, max_queue=6, patience=3)
    chance, inside, served = random.Random(seed), dict.fromkeys(limits, 0), 0

    async def client() -> None:
        nonlocal served
        await trio.sleep(chance.uniform(0, 20))
        label, turns = chance.choice(list(limits)), chance.choice([1, 1, 1, 2])
        with trio.move_on_after(chance.choice([0.5, 2, 60])):
            try:
                slot = await hall.enter(label, turns=turns)
            except BridgeError:
                return
            inside[label] += turns
            served += 1
            assert all(inside[each] <= limit for each, limit in limits.items())
            assert sum(inside.values()) <= 5
            try:
                await trio.sleep(chance.uniform(0, 2))
            finally:
                inside[label] -= turns
                slot.free()

    work: Callable[[], Awaitable[None]] = client
    async with trio.open_nursery() as nursery:
        for _ in range(120):
            nursery.start_soon(work)
    assert served > 30
    assert (hall.admission.running, hall.admission.waiting) == (0, 0)
