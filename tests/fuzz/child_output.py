"""All that a child can write while a turn runs, in either dialect: through the reader, the routes and the encoders."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson
import trio
import trio.testing
from fuzz.answers import TURN, check_events
from fuzz.cutting import choice, cut

from bridge.appserver.child import Child
from bridge.appserver.turn import ChildSettings
from bridge.core.events import Finished, TurnEvent

KEY = "00000000-0000-4000-8000-000000000001"
"""The thread of the turn, in both dialects."""
METHODS = {
    "current": ("thread/start", "thread/inject_items", "turn/start", "turn/interrupt", "thread/unsubscribe"),
    "legacy": ("newConversation", "addConversationListener", "sendUserTurn", "sendUserMessage"),
}
PROMPTS = {"turn/start", "sendUserTurn", "sendUserMessage"}
"""The calls after which the child speaks."""


def read_child_output(data: bytes) -> None:
    """The turn comes to one end, its clients get whole streams, and the reader lives on for the other turns."""
    number = choice(data)
    dialect = "legacy" if number & 128 else "current"
    batches = trio.run(_play, dialect, cut(data[1:], number, 16), clock=trio.testing.MockClock(autojump_threshold=0))
    check_events(batches, calls_in_text=True)


@dataclass
class _Process:
    """A child without a process: our ends of its pipes."""

    stdin: trio.abc.SendStream
    stdout: trio.abc.ReceiveStream
    stderr: trio.abc.ReceiveStream
    pid: int = 1

    def write_at_once(self, data: bytes) -> int:
        return 0


async def _play(dialect: str, pieces: list[bytes]) -> list[list[TurnEvent]]:
    stdin, heard = trio.testing.memory_stream_one_way_pair()
    said, stdout = trio.testing.memory_stream_one_way_pair()
    silence, stderr = trio.testing.memory_stream_one_way_pair()
    child = Child(_Process(stdin, stdout, stderr), ChildSettings(ignore_system_prompt=False), dialect=dialect)  # type: ignore[arg-type]
    batches: list[list[TurnEvent]] = []
    prompted, ended, speaking = trio.Event(), trio.Event(), trio.Lock()
    async with trio.open_nursery() as nursery:
        await nursery.start(child.pump)
        nursery.start_soon(_answer, heard, said, speaking, dialect, prompted)
        await child.handshake()
        stream = child.start(TURN, "req_1")
        nursery.start_soon(_consume, stream, batches, ended)
        await prompted.wait()
        for piece in pieces:
            async with speaking:
                await said.send_all(piece)
        await trio.testing.wait_all_tasks_blocked()
        await silence.aclose()
        await said.aclose()
        # Time passes at once here: what does not end by itself would else never end.
        with trio.fail_after(10_000):
            await ended.wait()
        nursery.cancel_scope.cancel()
    return batches


async def _consume(stream: Any, batches: list[list[TurnEvent]], ended: trio.Event) -> None:
    while not batches or not isinstance(batches[-1][-1], Finished):
        batches.append(await stream.next())
    stream.close()
    ended.set()


async def _answer(
    heard: trio.abc.ReceiveStream, said: trio.abc.SendStream, speaking: trio.Lock, dialect: str, prompted: trio.Event
) -> None:
    """Answer what the bridge calls; `prompted` is set when the turn has begun."""
    buffer = b""
    while data := await heard.receive_some():
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            message = orjson.loads(line)
            if "id" not in message or "method" not in message:
                continue
            reply = _reply(message["method"], dialect)
            async with speaking:
                with suppress(trio.ClosedResourceError):
                    await said.send_all(orjson.dumps({"id": message["id"], **reply}) + b"\n")
            if message["method"] in PROMPTS:
                prompted.set()


def _reply(method: str, dialect: str) -> dict[str, Any]:
    if method == "bridge/probe":
        known = ", ".join(f"`{name}`" for name in METHODS[dialect])
        return {"error": {"code": -32600, "message": f"unknown variant `bridge/probe`, expected one of {known}"}}
    return {
        "result": {
            "userAgent": "fuzzed/1.0.0",
            "thread": {"id": KEY},
            "conversationId": KEY,
            "subscriptionId": "sub",
            "turn": {"id": "turn", "items": [], "status": "inProgress"},
        }
    }
