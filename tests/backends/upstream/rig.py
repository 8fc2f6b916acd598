"""The direct client in this event loop, in front of the scripted backend.

    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(refusal(503), Stream(answer(text("hello"))))
        assert (await rig.ask()).text == "hello"
        assert rig.statuses == [503, 200]

With an autojump clock the pauses between attempts, and the time limits, cost nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from upstream.chatgpt import ChatGPT, serving
from upstream.events import answer, completed, text
from upstream.noting import noted
from upstream.tokens import assert_no_secrets

from bridge.auth.refresh import CodexLogin
from bridge.backends.base import EventStream
from bridge.backends.codex import CodexDoor
from bridge.backends.responses.backend import ResponsesBackend
from bridge.backends.upstream.client import Patience, Upstream
from bridge.errors import BridgeError
from bridge.turn.collect import Result
from bridge.turn.items import Item, Message, Text
from bridge.turn.turn import Turn

SESSION = "11111111-2222-3333-4444-555555555555"
NOW = "2030-01-01T00:00:00Z"
MODEL = "gpt-5.2-codex"
LEAVES_GENERATORS = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
"""Where an answer is not read to its end, httpx2's generators are left to the garbage collector; trio warns of it."""


def turn(*items: Item, **more: Any) -> Turn:
    """A turn with these items, or with a greeting."""
    return Turn(
        "responses",
        MODEL,
        MODEL,
        items or (Message("user", (Text("hi"),)),),
        **{"session": SESSION, "stream": True, **more},
    )


async def collect(stream: EventStream) -> Result:
    """A turn to its end, then let go of it."""
    result = Result()
    while result.end is None:
        result.add(await stream.next())
    stream.close()
    return result


@dataclass
class Rig:
    """A backend with a login, and what it is asked."""

    chatgpt: ChatGPT
    home: Path
    upstream: Upstream
    backend: ResponsesBackend
    sent: list[bytes] = field(default_factory=list)
    """The bodies, as --log-requests would tell them."""
    traced: list[bytes] = field(default_factory=list)
    """The events, as --trace would show them."""

    @property
    def auth(self) -> Path:
        return self.home / "auth.json"

    @property
    def statuses(self) -> list[int | None]:
        """What each request was answered; None for a connection that just ended."""
        return [request.status for request in self.chatgpt.requests]

    async def start(self, asked: Turn | None = None) -> EventStream:
        return await self.backend.start(asked or turn(), "req_1")

    async def ask(self, asked: Turn | None = None) -> Result:
        """One turn to its end."""
        return await collect(await self.start(asked))

    async def answered(self, asked: Turn | None = None) -> Result:
        """One turn that must succeed."""
        result = await self.ask(asked)
        assert result.end is not None
        assert result.end.outcome == "completed", result.end
        return result

    async def failed(self, asked: Turn | None = None) -> tuple[BridgeError, Result]:
        """One turn that must fail, without telling a secret or where things are; its error and what was said."""
        result = await self.ask(asked)
        assert result.end is not None
        assert result.end.outcome == "failed", result
        error = result.end.error
        assert error is not None
        assert_no_secrets(error, error.message, error.body(), error.args)
        assert str(self.home) not in error.message
        return error, result


@asynccontextmanager
async def rigged(
    directory: Path, form: Any = "chatgpt", *, faults: bool = False, base_url: str | None = None, **patience: float
) -> AsyncIterator[Rig]:
    """A login of this form that works. At the end nothing wrong may have been sent, unless `faults` are expected."""
    async with serving() as chatgpt, trio.open_nursery() as nursery:
        home = chatgpt.home(directory, form)
        upstream = Upstream(base_url or chatgpt.base_url, Patience(**patience), jitter=lambda: 0.5)
        await nursery.start(upstream.run)
        login = CodexLogin(
            home, token_url=chatgpt.token_url, client=upstream.client_to(chatgpt.token_url), now=lambda: NOW
        )
        door = CodexDoor(login, chatgpt_url=base_url or chatgpt.base_url, api_url=chatgpt.api_base_url)
        sent: list[bytes] = []
        traced: list[bytes] = []
        backend = ResponsesBackend("codex", upstream, door, new_session=lambda: SESSION, record=noted(sent, traced))
        yield Rig(chatgpt, home, upstream, backend, sent, traced)
        assert faults or chatgpt.faults == []
        nursery.cancel_scope.cancel()


def long_story(pieces: int, size: int) -> list[dict[str, Any]]:
    """A text in so many deltas of this size, told in the deltas alone."""
    told = answer(text("x" * size), end=completed(output=False))
    begun, delta, end = told[:4], told[4], told[-1]
    return [*begun, *[delta] * pieces, end]
