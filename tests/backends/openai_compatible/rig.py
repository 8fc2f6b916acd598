"""The backend for chat completions: its pure parts by themselves, and all of it in front of a scripted server.

assert decode(answer(text("hello"))).text == "hello"

async with rigged() as rig:
    rig.server.will(refusal(503), stream(answer(text("hello"))))
    assert (await rig.answered()).text == "hello"
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import trio
from upstream.noting import noted
from upstream.openai_chat import ChatServer, serving
from upstream.openai_chat_checks import body_faults

from bridge.backends.base import EventStream
from bridge.backends.openai_compatible.backend import ChatApi, chat_url
from bridge.backends.openai_compatible.body import build_body
from bridge.backends.openai_compatible.decode import ChatBuffer
from bridge.backends.openai_compatible.presets import CUSTOM, Preset
from bridge.backends.upstream.backend import UpstreamBackend
from bridge.backends.upstream.client import Patience, Upstream
from bridge.backends.upstream.door import KeyDoor
from bridge.errors import BridgeError
from bridge.turn.collect import ReasoningOutput, Result
from bridge.turn.items import FunctionTool, Item, Message, Text
from bridge.turn.turn import Turn

Json = dict[str, Any]

MODEL = "some-model"
WEATHER = FunctionTool("weather", "Tells it.", {"type": "object", "properties": {"city": {"type": "string"}}})
CLOCK = FunctionTool("clock")


def user(*texts: str) -> Message:
    return Message("user", tuple(Text(text) for text in texts))


def turn(*items: Item, **more: Any) -> Turn:
    """A turn with these items, or with a greeting."""
    return Turn("responses", MODEL, MODEL, items or (user("hi"),), **{"stream": True, **more})


def body_of(asked: Turn, preset: Preset = CUSTOM) -> Json:
    """The body as it travels, after a look at it."""
    body = orjson.loads(orjson.dumps(build_body(asked, preset)))
    assert list(body_faults(body)) == []
    return body


def decode(
    chunks: Iterable[Any], asked: Turn | None = None, preset: Preset = CUSTOM, *, told: bool | None = True
) -> Result:
    """A stream of these chunks to its end: by `[DONE]`, or by the end of the body, or (None) not at all."""
    buffer = ChatBuffer(asked or turn(tools=(WEATHER, CLOCK)), preset)
    for chunk in chunks:
        buffer.receive(orjson.dumps(chunk))
    if told is not None:
        buffer.over(told=told)
    result = Result()
    result.add(buffer.take())
    return result


def thoughts(result: Result) -> str:
    """All reasoning of a result."""
    outputs = [output for output in result.outputs if isinstance(output, ReasoningOutput)]
    return "".join("".join(output.content_parts()) for output in outputs)


def called(result: Result) -> list[tuple[str, str]]:
    """The calls, without their ids."""
    return [(call.name, call.arguments) for call in result.calls]


async def collect(stream: EventStream) -> Result:
    """A turn to its end, then let go of it."""
    result = Result()
    while result.end is None:
        result.add(await stream.next())
    stream.close()
    return result


@dataclass
class Rig:
    """A backend with a key, and the server that it asks."""

    server: ChatServer
    backend: UpstreamBackend
    traced: list[bytes] = field(default_factory=list)

    @property
    def statuses(self) -> list[int | None]:
        return [request.status for request in self.server.requests]

    @property
    def sent(self) -> Json:
        """The body of the last request."""
        return self.server.requests[-1].body

    async def start(self, asked: Turn | None = None) -> EventStream:
        return await self.backend.start(asked or turn(), "req_1")

    async def ask(self, asked: Turn | None = None) -> Result:
        return await collect(await self.start(asked))

    async def answered(self, asked: Turn | None = None) -> Result:
        """One turn that must succeed."""
        result = await self.ask(asked)
        assert result.end is not None
        assert result.end.outcome == "completed", result.end
        return result

    async def failed(self, asked: Turn | None = None) -> tuple[BridgeError, Result]:
        """One turn that must fail, and does not tell the key; its error and what was said."""
        result = await self.ask(asked)
        assert result.end is not None
        assert result.end.outcome == "failed", result
        error = result.end.error
        assert error is not None
        assert "canary" not in f"{error!r} {error.body()}"
        return error, result


@asynccontextmanager
async def rigged(preset: Preset = CUSTOM, *, key: str | None = "", **patience: float) -> AsyncIterator[Rig]:
    """With the right key, unless another is given. At the end nothing wrong may have been sent."""
    async with serving() as server, trio.open_nursery() as nursery:
        upstream = Upstream(server.base_url, Patience(**patience), jitter=lambda: 0.5)
        await nursery.start(upstream.run)
        door = KeyDoor(chat_url(server.base_url), server.key if key == "" else key)
        traced: list[bytes] = []
        backend = UpstreamBackend(
            "chat", upstream, ChatApi(preset), door, new_session=lambda: "session", record=noted([], traced)
        )
        yield Rig(server, backend, traced)
        assert server.faults == []
        nursery.cancel_scope.cancel()
