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
from upstream.noting import Asking, failure_of, noted
from upstream.tokens import assert_no_secrets

from bridge.core.collect import Result
from bridge.core.items import Item, Message, Text
from bridge.core.turn import Turn
from bridge.errors import BridgeError
from bridge.upstream.backend import ResponsesApi, UpstreamBackend
from bridge.upstream.client import Patience, Upstream
from bridge.upstream.codex import CodexCredentials, CodexLogin

SESSION = "11111111-2222-3333-4444-555555555555"
NOW = "2030-01-01T00:00:00Z"
MODEL = "gpt-5.2-codex"
LEAVES_GENERATORS = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
"""Where an answer is not read to its end, httpx2's generators are left to the garbage collector; trio warns of it."""


def turn(*items: Item, **more: Any) -> Turn:
    """A turn with these items, or with a greeting."""
    return Turn(
        MODEL,
        MODEL,
        items or (Message("user", (Text("hi"),)),),
        **{"session": SESSION, "stream": True, **more},
    )


@dataclass
class Rig(Asking):
    """A backend with a login, and what it is asked."""

    chatgpt: ChatGPT
    home: Path
    upstream: Upstream
    backend: UpstreamBackend
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

    def greeting(self) -> Turn:
        return turn()

    async def failed(self, asked: Turn | None = None) -> tuple[BridgeError, Result]:
        """One turn that must fail, without telling a secret or where things are; its error and what was said."""
        result = await self.ask(asked)
        error = failure_of(result)
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
        credentials = CodexCredentials(login, chatgpt_url=base_url or chatgpt.base_url, api_url=chatgpt.api_base_url)
        sent: list[bytes] = []
        traced: list[bytes] = []
        backend = UpstreamBackend(
            "codex", upstream, ResponsesApi(), credentials, new_session=lambda: SESSION, record=noted(sent, traced)
        )
        yield Rig(chatgpt, home, upstream, backend, sent, traced)
        assert faults or chatgpt.faults == []
        nursery.cancel_scope.cancel()


def long_story(pieces: int, size: int) -> list[dict[str, Any]]:
    """A text in so many deltas of this size, told in the deltas alone."""
    told = answer(text("x" * size), end=completed(output=False))
    begun, delta, end = told[:4], told[4], told[-1]
    return [*begun, *[delta] * pieces, end]
