"""The simplest way in: one key for one base URL."""

from __future__ import annotations

from bridge.backends.responses.backend import JSON_HEADERS
from bridge.backends.upstream.client import Asking, Request
from bridge.turn.turn import Turn


class KeyDoor:
    """A server that takes a key (or none)."""

    def __init__(self, base_url: str, key: str | None) -> None:
        self._url = f"{base_url}/responses"
        self._key = key

    def asking(self, turn: Turn, session: str, content: bytes) -> Asking:
        key = turn.provider_key or self._key
        authorization, secrets = ({}, ()) if key is None else ({"authorization": f"Bearer {key}"}, (key,))
        return _KeyAsking(Request(self._url, {**JSON_HEADERS, **authorization}, content, secrets))


class _KeyAsking:
    def __init__(self, request: Request) -> None:
        self._request = request

    def request(self) -> Request:
        return self._request

    async def renew(self) -> bool:
        return False
