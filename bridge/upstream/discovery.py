"""The models that a provider lists.

A list is fresh for five minutes. An older one is served while a new one is fetched; if the provider does not respond,
its last list stays. Only the first caller waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx2
import orjson
import trio

from bridge.upstream.client import Upstream

log = logging.getLogger("bridge")

FRESH = 300.0
PATIENCE = 10.0
"""Seconds for a provider to respond."""
MAX_LIST = 8 * 1024 * 1024
MAX_MODELS = 5000
MAX_NAME = 256


class ModelList:
    """The models of one provider, by GET `url`. `headers` is called for each request, since a login expires."""

    def __init__(
        self, name: str, upstream: Upstream, url: str, headers: Callable[[], Awaitable[Mapping[str, str]]]
    ) -> None:
        self._name = name
        self._upstream = upstream
        self._url = url
        self._headers = headers
        self._models: tuple[str, ...] = ()
        self._fetched_at: float | None = None
        self._fetching: trio.Event | None = None

    def __repr__(self) -> str:
        return f"<ModelList {self._name} models={len(self._models)}>"

    def models(self) -> tuple[str, ...]:
        """The list as far as it is known; when it is old, a new one is fetched in the background."""
        if self._fetching is None and not self._is_fresh():
            self._fetching = trio.Event()
            if not self._upstream.spawn(self._refresh):
                self._fetching = None  # too early, or too late
        return self._models

    def lists(self) -> tuple[object, ...] | None:
        """The list, after the first request for it; see Backend."""
        models = self.models()
        return None if self._fetched_at is None else (models,)

    async def wait(self) -> None:
        """Wait for the first request for the list, whether it succeeds or fails."""
        self.models()
        if self._fetched_at is None and self._fetching is not None:
            await self._fetching.wait()

    def _is_fresh(self) -> bool:
        return self._fetched_at is not None and trio.current_time() - self._fetched_at < FRESH

    async def _refresh(self) -> None:
        assert self._fetching is not None
        try:
            with trio.move_on_after(PATIENCE) as patience:
                self._models = await self._fetch()
            if patience.cancelled_caught:
                log.warning("%s did not list its models within %g s", self._name, PATIENCE)
        except Exception as error:
            # The list stays as it was. Only the type is logged: a message may hold what was sent.
            log.warning("%s did not list its models (%s)", self._name, type(error).__name__)
        finally:
            self._fetched_at = trio.current_time()
            self._fetching.set()
            self._fetching = None

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
    # Names are shown on terminals: control characters are not accepted.
    known = [name for name in names if isinstance(name, str) and len(name) <= MAX_NAME and name.isprintable()]
    kept = [name.removeprefix("models/") for name in known if name not in ("", "models/")]
    return tuple(dict.fromkeys(kept))[:MAX_MODELS]
