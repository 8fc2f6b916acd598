"""The URL and headers of a turn's requests, from an API key, a login, or the key that came with the turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from bridge.core.turn import Turn
from bridge.errors import BridgeError, NotReady, UpstreamError
from bridge.upstream.login import Login, StoredLogin


@dataclass(frozen=True, slots=True)
class Request:
    """One POST. Its headers hold secrets, so they are not in its repr."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    content: bytes = field(repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """The secrets in the headers, removed from responses: some providers repeat what they reject."""


class Attempt(Protocol):
    """Makes the requests of one turn."""

    def request(self) -> Request:
        """The request to send now."""

    async def renew(self) -> bool:
        """Called after a 401: True when `request` now has new credentials. May raise a BridgeError."""


JSON_HEADERS = {"content-type": "application/json", "accept": "text/event-stream"}


class Credentials(Protocol):
    """Where a provider is, and how the bridge identifies itself there."""

    def attempt(self, turn: Turn, session: str, content: bytes) -> Attempt:
        """The requests of one turn. Raises a BridgeError without a usable login."""


class KeyCredentials:
    """A key as a bearer token. `headers` are sent with every request.

    Without a key, requests are sent without one, unless `needed` says why they must not be.
    """

    def __init__(
        self, url: str, key: str | None, *, headers: Mapping[str, str] | None = None, needed: str | None = None
    ) -> None:
        self._url = url
        self._key = key
        self._needed = needed
        self._headers = with_json_headers(headers)
        self._secrets = tuple((headers or {}).values())

    async def headers(self) -> dict[str, str]:
        """The headers of other requests, such as the one for the list of models."""
        return self._with_key(self._key)

    def attempt(self, turn: Turn, session: str, content: bytes) -> Attempt:
        key = turn.provider_key or self._key
        if key is None and self._needed is not None:
            raise NotReady(self._needed, code="missing_key", http_status=401, severity="fatal")
        secrets = self._secrets if key is None else (key, *self._secrets)
        return FixedAttempt(Request(self._url, self._with_key(key), content, secrets))

    def _with_key(self, key: str | None) -> dict[str, str]:
        return self._headers if key is None else {**self._headers, "authorization": f"Bearer {key}"}


class FixedAttempt:
    """One request that cannot be renewed. `rejected` is raised when the provider does not accept its key."""

    def __init__(self, request: Request, rejected: BridgeError | None = None) -> None:
        self._request = request
        self._rejected = rejected

    def request(self) -> Request:
        return self._request

    async def renew(self) -> bool:
        if self._rejected is not None:
            raise self._rejected
        return False


class LoginAttempt:
    """Requests with a login: one that expires soon is renewed before it is used, a rejected one afterwards, but once.

    `make` makes the request with a login.
    """

    def __init__(self, source: StoredLogin, make: Callable[[Login], Request]) -> None:
        self._source = source
        self._make = make
        self._login = source.current()
        self._renewed = False

    def request(self) -> Request:
        if not self._renewed and self._source.expires_soon(self._login):
            # As if the provider had rejected it: the caller then renews it and tries again.
            raise UpstreamError("The login has expired.", code="upstream_unauthorized", http_status=401)
        return self._make(self._login)

    async def renew(self) -> bool:
        early = not self._renewed and self._source.expires_soon(self._login)
        self._renewed = True
        try:
            self._login = await self._source.refresh(self._login)
        except BridgeError:
            # The old tokens may still be valid for minutes.
            if not early or self._source.has_expired(self._login):
                raise
        return True


def with_json_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    return {**JSON_HEADERS, **{name.lower(): value for name, value in (headers or {}).items()}}
