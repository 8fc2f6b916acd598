"""A login on disk, and the token endpoint that it belongs to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from upstream.answers import Gate
from upstream.chatgpt import ChatGPT, serving
from upstream.tokens import assert_no_secrets

from bridge.errors import BridgeError
from bridge.upstream.codex import CodexLogin, parse_auth
from bridge.upstream.login import Login

NOW = "2030-01-01T00:00:00Z"


@dataclass
class Rig:
    """What a test of refreshing needs."""

    chatgpt: ChatGPT
    home: Path
    client: httpx2.AsyncClient

    @property
    def path(self) -> Path:
        return self.home / "auth.json"

    def login(self) -> CodexLogin:
        """A login as each program has its own."""
        return CodexLogin(self.home, token_url=self.chatgpt.token_url, client=self.client, now=lambda: NOW)

    def on_disk(self) -> Login:
        return parse_auth(json.loads(self.path.read_bytes()))

    async def refused(self) -> tuple[BridgeError, bytes]:
        """A refresh that must fail, leave the file alone and tell no secret; its error and what is on disk."""
        before = self.path.read_bytes()
        login = self.login()
        with pytest.raises(BridgeError) as caught:
            await login.refresh(login.current())
        assert self.path.read_bytes() == before
        assert_no_secrets(caught.value, caught.value.body(), caught.value.message)
        assert self.chatgpt.url not in caught.value.message
        return caught.value, before

    async def changed_while_asking(
        self, change: Callable[[], object], login: CodexLogin | None = None
    ) -> Login | BridgeError:
        """What a refresh comes to when `change` is called before the endpoint answers."""
        login = login or self.login()
        old = login.current()
        gate = self.chatgpt.token_gate = Gate()
        got: list[Login | BridgeError] = []

        async def refresh() -> None:
            try:
                got.append(await login.refresh(old))
            except BridgeError as error:
                got.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(refresh)
            await self.chatgpt.until(lambda: gate.held)
            change()
            gate.open()
        (result,) = got
        return result


@asynccontextmanager
async def rigged(directory: Path, form: Any = "chatgpt", **more: Any) -> AsyncIterator[Rig]:
    """A login of this form that works; at the end nothing wrong may have been sent."""
    async with serving() as chatgpt, httpx2.AsyncClient(trust_env=False) as client:
        yield Rig(chatgpt, chatgpt.home(directory, form, **more), client)
        assert chatgpt.faults == []
