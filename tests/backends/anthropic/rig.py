"""The Messages backend in this event loop, in front of the scripted API.

async with rigged() as rig:
    rig.api.will(Stream(answer(text("hello"))))
    assert (await rig.answered()).text == "hello"
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import trio
from upstream.anthropic_checks import body_faults
from upstream.anthropic_events import MODEL
from upstream.anthropic_server import KEY, Anthropic, serving
from upstream.noting import Asking, failure_of, noted
from upstream.tokens import assert_no_secrets

from bridge.core.items import FunctionCall, FunctionOutput, FunctionTool, Item, Message, RawItem, Role, Text
from bridge.core.turn import Turn
from bridge.errors import BridgeError
from bridge.protocols.messages.build import build_body
from bridge.upstream.anthropic import AnthropicCredentials, ClaudeLogin
from bridge.upstream.backend import MessagesApi, UpstreamBackend
from bridge.upstream.client import Patience, Upstream

Json = dict[str, Any]

NOW = 2_000_000_000.0
"""What the rig's clock says, in seconds."""
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def said(role: Role, *texts: str) -> Message:
    return Message(role, tuple(Text(text) for text in texts))


def called(call_id: str, arguments: str = "{}", name: str = "add", **more: Any) -> FunctionCall:
    return FunctionCall(call_id, name, arguments, **more)


def gave(call_id: str, *texts: str, **more: Any) -> FunctionOutput:
    return FunctionOutput(call_id, tuple(Text(text) for text in texts), **more)


def reasoning(encrypted: Any) -> RawItem:
    return RawItem("reasoning", {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": encrypted})


ADD = FunctionTool("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})


def turn(*items: Item, **more: Any) -> Turn:
    """A turn with these items, or with a greeting."""
    given = {"model": MODEL, **more}
    return Turn(requested_model=given["model"], items=items or (said("user", "hi"),), **given)


def built(*items: Item, **more: Any) -> Json:
    """The body of such a turn, in which nothing may be wrong."""
    body: Json = orjson.loads(orjson.dumps(build_body(turn(*items, **more))))
    faults = list(body_faults(body))
    assert faults == [], faults
    return body


def messages(*items: Item, **more: Any) -> list[tuple[str, list[Json]]]:
    """The messages of such a turn, without the marks for the cache."""
    return [
        (
            message["role"],
            [{name: value for name, value in block.items() if name != "cache_control"} for block in message["content"]],
        )
        for message in built(*items, **more)["messages"]
    ]


@dataclass
class Rig(Asking):
    """A backend, and what it is asked."""

    api: Anthropic
    backend: UpstreamBackend
    credentials: Path | None = None
    sent: list[bytes] = field(default_factory=list)

    def greeting(self) -> Turn:
        return turn()

    async def failed(self, asked: Turn | None = None) -> BridgeError:
        """One turn that must fail, without telling a secret or where things are."""
        result = await self.ask(asked)
        error = failure_of(result)
        assert_no_secrets(error, error.message, error.body(), error.args)
        assert self.api.url not in error.message
        return error

    @property
    def bodies(self) -> list[Json]:
        """What the API was sent."""
        return [request.body for request in self.api.requests]


@asynccontextmanager
async def rigged(
    *,
    key: str | None = KEY,
    credentials: Callable[[Anthropic], Path] | None = None,
    now: Callable[[], float] = lambda: NOW,
    faults: bool = False,
    **patience: float,
) -> AsyncIterator[Rig]:
    """A backend with this key, or with the login in a file. At the end nothing wrong may have been sent."""
    async with serving() as api, trio.open_nursery() as nursery:
        upstream = Upstream(api.url, Patience(**patience), jitter=lambda: 0.5)
        await nursery.start(upstream.run)
        path = credentials(api) if credentials is not None else None
        login = None
        if path is not None:
            login = ClaudeLogin(path, client=upstream.client_to(api.token_url), now=now, token_url=api.token_url)
        account = AnthropicCredentials(api.url, key=key if login is None else None, login=login)
        sent: list[bytes] = []
        backend = UpstreamBackend(
            "anthropic", upstream, MessagesApi(), account, new_session=lambda: "session", record=noted(sent, [])
        )
        yield Rig(api, backend, path, sent)
        assert faults or api.faults == []
        nursery.cancel_scope.cancel()
