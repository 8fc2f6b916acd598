"""Clients that leave, return, read slowly, repeat requests and cancel turns, in random order: each sees one answer."""

from __future__ import annotations

import random

import pytest
import trio
from play import JSON, NDJSON, SSE, Json, Play
from server.cap.desk import CapCall, CapDesk, open_desk, request
from trio.testing import MockClock

from bridge.core.events import ReasoningDelta, ReasoningDone, Restarted, ToolCall
from bridge.errors import UpstreamError
from bridge.protocols.cap import CapOptions

GRACE = 5.0
CLOSE = {"op": "close", "p": None}


class Chaos:
    """One run. Everything is chosen by `dice`."""

    def __init__(self, desk: CapDesk, dice: random.Random) -> None:
        self.desk = desk
        self.dice = dice
        self.told: dict[str, dict[int, Json]] = {}
        """The packets that any client has seen, by the bridge's id of the turn."""

    async def perform(self, play: Play) -> None:
        """The model, in its moods."""
        dice = self.dice
        for number in range(dice.randrange(12)):
            await trio.sleep(dice.choice([0, 0, 0.1, 1, 2.5]))
            kind = dice.randrange(10)
            if kind == 0:
                play.tell(ReasoningDelta(f"rs_{number}", 0, ["Hm."]), ReasoningDone(f"rs_{number}"))
            elif kind == 1:
                play.tell(ToolCall(f"fc_{number}", f"call_{number}", "look", '{"q":1}'))
            elif kind == 2:
                play.say("x" * dice.choice([10, 300_000, 1_200_000]))
            elif kind == 3 and dice.random() < 0.2:
                play.tell(Restarted("again"))
            else:
                play.say(*(f"{number}.{piece} " for piece in range(dice.randrange(1, 5))))
        await trio.sleep(dice.choice([0, 0.1, 3]))
        end = dice.randrange(6)
        if end == 0:
            play.fail(UpstreamError("Broken.", code="stream_truncated", severity="transient"))
        elif end == 1:
            play.finish("incomplete", "max_output_tokens")
        elif end > 2:
            play.finish()
        # Else it never ends by itself.

    async def model(self) -> None:
        """Start to answer each turn."""
        number = 0
        while True:
            number += 1
            play = await self.desk.model.play(number)
            self.desk.nursery.start_soon(self.perform, play)

    async def client(self, number: int) -> None:
        """One of several clients that send the same few requests."""
        dice, desk = self.dice, self.desk
        for _ in range(dice.randrange(1, 5)):
            body = request(
                "Hello", number=number % 3, conversation_id=f"c{number % 3 % 2}", meta={"timeout_ms": 40_000}
            )
            await trio.sleep(dice.choice([0, 0, 0.05, 1, 4.9, 5, 5.1]))
            if dice.random() < 0.1:
                call = desk.delete(body["request_id"])
                await call.whole()
                assert call.status in (202, 410), call.body
                continue
            accept, slow = dice.choice([SSE, SSE, NDJSON, JSON]), dice.random() < 0.3
            call = desk.ask(body, accept, slow=slow)
            await self.listen(call, slow)
            for _ in range(dice.randrange(3)):
                if accept != SSE or call.status != 200 or not call.ids or call.packets[-1] == CLOSE:
                    break
                await trio.sleep(dice.choice([0, 0.5, 4.9, 5, 7]))
                last = call.ids[-1]
                call = desk.get(body["request_id"], last, accept=SSE)
                await self.listen(call, slow=False)
                if call.status == 200 and call.ids:
                    assert call.ids[0] == last + 1
                if call.status not in (None, 200):  # None for one that left before its answer began
                    assert call.error == (410, "stream_expired")

    async def listen(self, call: CapCall, slow: bool) -> None:
        """Read for a while, or to the end."""
        with trio.move_on_after(self.dice.choice([0, 0.2, 2, 200, 200])):
            while slow and not call.done.is_set():
                call.take()
                await trio.sleep(0.05)
            await call.whole()
        call.leave()
        for _ in range(10):
            call.take()
        with trio.move_on_after(100):
            await call.whole()
        assert call.done.is_set()
        self.look(call)

    def look(self, call: CapCall) -> None:
        """Check that what was seen is part of one answer, in order."""
        if call.status is None or not call.body:
            return
        if call.status != 200:
            ends = "upstream_stream_disconnected", "turn_busy", "stream_expired", "deadline_exceeded", "empty_response"
            assert call.error[1] in ends, call.body
            return
        kind = call.headers["content-type"]
        if kind == JSON:
            assert call.json["output"]["status"] in ("completed", "incomplete")
            return
        if not call.body.endswith(b"\n"):
            call.body = call.body[: call.body.rfind(b"\n\n" if kind.startswith(SSE) else b"\n") + 2]
        packets = call.packets
        ops = [packet["op"] for packet in packets]
        assert "close" not in ops[:-1]
        assert "error" not in ops[:-2]
        if kind.startswith(SSE):
            ids = call.ids
            assert ids == list(range(ids[0], ids[0] + len(ids))) if ids else True
            # Whoever reads the same turn reads the same.
            known = self.told.setdefault(call.headers["x-bridge-request-id"], {})
            for number, packet in zip(ids, packets, strict=True):
                assert known.setdefault(number, packet) == packet


def _seeds() -> list[object]:
    return [*range(40), *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(40, 400))]


@pytest.mark.parametrize("seed", _seeds())
async def test_every_client_sees_one_answer(autojump_clock: MockClock, seed: int) -> None:
    """Afterwards no turn runs and no conversation is busy."""
    dice = random.Random(seed)
    async with open_desk(options=CapOptions(grace=GRACE)) as desk:
        chaos = Chaos(desk, dice)
        desk.nursery.start_soon(chaos.model)
        async with trio.open_nursery() as clients:
            for number in range(dice.randrange(1, 6)):
                clients.start_soon(chaos.client, number)
        await trio.sleep(60)
        for play in desk.model.plays:
            assert play.closed.is_set()
        for number in range(2):
            body = request("Next", number=50 + number, conversation_id=f"c{number}", meta={"timeout_ms": 50_000})
            call = desk.ask(body, JSON)
            with trio.move_on_after(60):
                await call.whole()
            assert call.done.is_set()
            assert call.status in (200, 502, 504), call.body
