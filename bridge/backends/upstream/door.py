"""The simplest way in: one key for one URL."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.backends.upstream.backend import JSON_HEADERS
from bridge.backends.upstream.client import Asking, Request
from bridge.errors import NotReady
from bridge.turn.turn import Turn


class KeyDoor:
    """A server that takes a key in the header `header`, after `prefix`. `headers` go with every request.

    Without a key it is asked without, unless `needed` says why it must not be.
    """

    def __init__(
        self,
        url: str,
        key: str | None,
        *,
        header: str = "authorization",
        prefix: str = "Bearer ",
        headers: Mapping[str, str] | None = None,
        needed: str | None = None,
    ) -> None:
        self._url = url
        self._key = key
        self._header = header
        self._prefix = prefix
        self._needed = needed
        self._headers = {**JSON_HEADERS, **{name.lower(): value for name, value in (headers or {}).items()}}
        self._secrets = tuple((headers or {}).values())

    async def headers(self) -> dict[str, str]:
        """Those of a request for something else, such as the list of models."""
        return self._headers if self._key is None else {**self._headers, self._header: f"{self._prefix}{self._key}"}

    def asking(self, turn: Turn, session: str, content: bytes) -> Asking:
        key = turn.provider_key or self._key
        if key is None:
            if self._needed is not None:
                raise NotReady(self._needed, code="missing_key", http_status=401, severity="fatal")
            return _KeyAsking(Request(self._url, self._headers, content, self._secrets))
        headers = {**self._headers, self._header: f"{self._prefix}{key}"}
        return _KeyAsking(Request(self._url, headers, content, (key, *self._secrets)))


class _KeyAsking:
    def __init__(self, request: Request) -> None:
        self._request = request

    def request(self) -> Request:
        return self._request

    async def renew(self) -> bool:
        return False
