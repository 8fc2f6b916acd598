"""The simplest way in: one key for one URL."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.backends.upstream.backend import JSON_HEADERS
from bridge.backends.upstream.client import Asking, Request
from bridge.turn.turn import Turn


class KeyDoor:
    """A server that takes a key (or none) in the header `header`, after `prefix`. `headers` go with every request."""

    def __init__(
        self,
        url: str,
        key: str | None,
        *,
        header: str = "authorization",
        prefix: str = "Bearer ",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._url = url
        self._key = key
        self._header = header
        self._prefix = prefix
        self._headers = {**JSON_HEADERS, **(headers or {})}

    def headers(self) -> dict[str, str]:
        """Those of a request for something else, such as the list of models."""
        return self._headers if self._key is None else {**self._headers, self._header: f"{self._prefix}{self._key}"}

    def asking(self, turn: Turn, session: str, content: bytes) -> Asking:
        key = turn.provider_key or self._key
        if key is None:
            return _KeyAsking(Request(self._url, self._headers, content))
        headers = {**self._headers, self._header: f"{self._prefix}{key}"}
        return _KeyAsking(Request(self._url, headers, content, (key,)))


class _KeyAsking:
    def __init__(self, request: Request) -> None:
        self._request = request

    def request(self) -> Request:
        return self._request

    async def renew(self) -> bool:
        return False
