"""The models that a provider lists, asked for now and then.

A list is good for five minutes. An older one is still given out while a new one is fetched; a provider that does not
answer keeps its last list, and nobody waits for it but the first who asks.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx2
import orjson
import trio

from bridge.backends.upstream.client import Upstream

log = logging.getLogger("bridge")

FRESH = 300.0
PATIENCE = 10.0
"""Seconds for a provider to answer."""
MAX_LIST = 8 * 1024 * 1024
MAX_MODELS = 5000
MAX_NAME = 256


class ModelList:
    """The models of one provider, by GET `url`. `headers` are made again each time, since they hold a login."""

    def __init__(
        self, name: str, upstream: Upstream, url: str, headers: Callable[[], Awaitable[Mapping[str, str]]]
    ) -> None:
        self._name = name
        self._upstream = upstream
        self._url = url
        self._headers = headers
        self._models: tuple[str, ...] = ()
        self._asked_at: float | None = None
        self._asking: trio.Event | None = None

    def __repr__(self) -> str:
        return f"<ModelList {self._name} models={len(self._models)}>"

    def models(self) -> tuple[str, ...]:
        """What is known now; when that is old, it is asked for beside the caller."""
        if self._asking is None and not self._is_fresh():
            self._asking = trio.Event()
            if not self._upstream.spawn(self._refresh):
                self._asking = None  # too early, or too late
        return self._models

    def lists(self) -> tuple[object, ...] | None:
        """The list itself, once the provider has been asked; see Backend."""
        models = self.models()
        return None if self._asked_at is None else (models,)

    async def wait(self) -> None:
        """Until the provider has been asked once, with or without success."""
        self.models()
        if self._asked_at is None and self._asking is not None:
            await self._asking.wait()

    def _is_fresh(self) -> bool:
        return self._asked_at is not None and trio.current_time() - self._asked_at < FRESH

    async def _refresh(self) -> None:
        assert self._asking is not None
        try:
            with trio.move_on_after(PATIENCE) as patience:
                self._models = await self._fetch()
            if patience.cancelled_caught:
                log.warning("%s does not tell its models within %g s", self._name, PATIENCE)
        except Exception as error:
            # Whatever it is, the list stays as it was. What an error says may hold what was sent.
            log.warning("%s does not tell its models (%s)", self._name, type(error).__name__)
        finally:
            self._asked_at = trio.current_time()
            self._asking.set()
            self._asking = None

    async def _fetch(self) -> tuple[str, ...]:
        client = self._upstream.client_to(self._url)
        async with client.stream("GET", self._url, headers=dict(await self._headers())) as answer:
            if answer.status_code != 200:
                raise httpx2.HTTPError(f"status {answer.status_code}")
            body = b""
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > MAX_LIST:
                    raise ValueError("the list is too long")
        return read_models(body)


def read_models(body: bytes) -> tuple[str, ...]:
    """The ids in a list of models, as OpenAI and Anthropic write it; Gemini's begin with `models/`."""
    data: Any = orjson.loads(body)
    entries = data.get("data") or data.get("models") or ()
    names = [entry.get("id") or entry.get("name") for entry in entries if isinstance(entry, dict)]
    # What is no name for a terminal is none for us.
    known = [name for name in names if isinstance(name, str) and len(name) <= MAX_NAME and name.isprintable()]
    kept = [name.removeprefix("models/") for name in known if name not in ("", "models/")]
    return tuple(dict.fromkeys(kept))[:MAX_MODELS]
