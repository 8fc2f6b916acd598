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
from upstream.noting import Asking, failure_of, noted
from upstream.openai_chat import ChatServer, serving
from upstream.openai_chat_checks import body_faults

from bridge.core.collect import ReasoningOutput, Result
from bridge.core.items import FunctionTool, Item, Message, Text
from bridge.core.turn import Turn
from bridge.errors import BridgeError
from bridge.protocols.chat.build import build_body
from bridge.protocols.chat.presets import CUSTOM, Preset
from bridge.upstream.backend import ChatApi, UpstreamBackend, chat_url
from bridge.upstream.client import Patience, Upstream
from bridge.upstream.credentials import KeyCredentials

Json = dict[str, Any]

MODEL = "some-model"
WEATHER = FunctionTool("weather", "Tells it.", {"type": "object", "properties": {"city": {"type": "string"}}})
CLOCK = FunctionTool("clock")


def user(*texts: str) -> Message:
    return Message("user", tuple(Text(text) for text in texts))


def turn(*items: Item, **more: Any) -> Turn:
    """A turn with these items, or with a greeting."""
    return Turn(MODEL, MODEL, items or (user("hi"),), **{"stream": True, **more})


def body_of(asked: Turn, preset: Preset = CUSTOM) -> Json:
    """The body as it travels, after a look at it."""
    body: Json = orjson.loads(orjson.dumps(build_body(asked, preset)))
    assert list(body_faults(body)) == []
    return body


def decode(
    chunks: Iterable[Any], asked: Turn | None = None, preset: Preset = CUSTOM, *, told: bool | None = True
) -> Result:
    """A stream of these chunks to its end: by `[DONE]`, or by the end of the body, or (None) not at all."""
    buffer = ChatApi(preset).buffer(asked or turn(tools=(WEATHER, CLOCK)))
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


@dataclass
class Rig(Asking):
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
        body: Json = self.server.requests[-1].body
        return body

    def greeting(self) -> Turn:
        return turn()

    async def failed(self, asked: Turn | None = None) -> tuple[BridgeError, Result]:
        """One turn that must fail, and does not tell the key; its error and what was said."""
        result = await self.ask(asked)
        error = failure_of(result)
        assert "canary" not in f"{error!r} {error.body()}"
        return error, result


@asynccontextmanager
async def rigged(preset: Preset = CUSTOM, *, key: str | None = "", **patience: float) -> AsyncIterator[Rig]:
    """With the right key, unless another is given. At the end nothing wrong may have been sent."""
    async with serving() as server, trio.open_nursery() as nursery:
        upstream = Upstream(server.base_url, Patience(**patience), jitter=lambda: 0.5)
        await nursery.start(upstream.run)
        credentials = KeyCredentials(chat_url(server.base_url), server.key if key == "" else key)
        traced: list[bytes] = []
        backend = UpstreamBackend(
            "chat", upstream, ChatApi(preset), credentials, new_session=lambda: "session", record=noted([], traced)
        )
        yield Rig(server, backend, traced)
        assert server.faults == []
        nursery.cancel_scope.cancel()
