"""The URL and headers of a turn's requests, from an API key, a login, or the key that came with the turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from bridge import __version__
from bridge.core.turn import Turn
from bridge.errors import BridgeError, NotReady, UpstreamError
from bridge.protocols.messages.models import is_bound
from bridge.upstream.claude_login import SIGN_IN, NotSignedIn
from bridge.upstream.client import Attempt, Request
from bridge.upstream.codex_login import NotLoggedIn
from bridge.upstream.login import Login, StoredLogin

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
        self._headers = _with_json_headers(headers)
        self._secrets = tuple((headers or {}).values())

    async def headers(self) -> dict[str, str]:
        """The headers of other requests, such as the one for the list of models."""
        return self._with_key(self._key)

    def attempt(self, turn: Turn, session: str, content: bytes) -> Attempt:
        key = turn.provider_key or self._key
        if key is None and self._needed is not None:
            raise NotReady(self._needed, code="missing_key", http_status=401, severity="fatal")
        secrets = self._secrets if key is None else (key, *self._secrets)
        return _FixedAttempt(Request(self._url, self._with_key(key), content, secrets))

    def _with_key(self, key: str | None) -> dict[str, str]:
        return self._headers if key is None else {**self._headers, "authorization": f"Bearer {key}"}


class _FixedAttempt:
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


class _LoginAttempt:
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


def _with_json_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    return {**JSON_HEADERS, **{name.lower(): value for name, value in (headers or {}).items()}}


# Codex

ORIGINATOR = "codex_cli_rs"
CODEX_VERSION = "0.163.0"
"""The Codex whose requests these resemble."""


class CodexCredentials:
    """A ChatGPT login goes to the ChatGPT backend, an API key to the API. An expired login is refreshed once."""

    def __init__(self, login: StoredLogin, *, chatgpt_url: str, api_url: str) -> None:
        self._login = login
        self._urls = {"chatgpt": f"{chatgpt_url}/responses", "api_key": f"{api_url}/responses"}

    def attempt(self, turn: Turn, session: str, content: bytes) -> Attempt:
        def make(login: Login) -> Request:
            headers = {
                **JSON_HEADERS,
                "authorization": f"Bearer {login.token}",
                "originator": ORIGINATOR,
                "user-agent": f"{ORIGINATOR}/{CODEX_VERSION} (turnbridge/{__version__})",
                "session_id": session,
            }
            if login.account_id is not None:
                headers["chatgpt-account-id"] = login.account_id
            return Request(self._urls[login.mode], headers, content, login.secrets)

        if turn.provider_key is None:
            return _LoginAttempt(self._login, make)
        rejected = NotLoggedIn("The provider rejects the key of this request. Use another key.")
        return _FixedAttempt(make(Login("api_key", turn.provider_key)), rejected)


# Anthropic

API_URL = "https://api.anthropic.com"
VERSION = "2023-06-01"
"""The version of the API; it also supports the features of older models."""
OAUTH_BETA = "oauth-2025-04-20"
BINDING_BETA = "thinking-binding-controls-2026-08-01"
"""Required for `thinking.block_binding`."""


class AnthropicCredentials:
    """A key, or the login of Claude Code. The key of a turn wins over both, a key over the login.

    `base_url` is without `/v1`.
    """

    def __init__(
        self,
        base_url: str = API_URL,
        *,
        key: str | None = None,
        login: StoredLogin | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        base_url = base_url.rstrip("/")
        self._headers = _with_json_headers(headers)
        self._secrets = tuple((headers or {}).values())
        self._url = f"{base_url}/v1/messages"
        self.models_url = f"{base_url}/v1/models"
        self._key = key
        self._login = login

    def attempt(self, turn: Turn, session: str, content: bytes) -> Attempt:
        betas = (BINDING_BETA,) if is_bound(turn) else ()
        key = turn.provider_key or self._key
        if key is not None:
            headers = {**self._headers, **_key_headers(key, betas)}
            rejected = (
                f"Anthropic rejects the API key. {SIGN_IN}"
                if turn.provider_key is None
                else "Anthropic rejects the key of this request. Use another key."
            )
            return _FixedAttempt(Request(self._url, headers, content, (key, *self._secrets)), NotSignedIn(rejected))

        def make(login: Login) -> Request:
            return Request(self._url, {**self._headers, **_login_headers(login, betas)}, content, login.secrets)

        return _LoginAttempt(self._required_login(), make)

    async def headers(self) -> dict[str, str]:
        """The headers of other requests, such as the one for the list of models. Raises a BridgeError."""
        if self._key is not None:
            return {**self._headers, **_key_headers(self._key)}
        source = self._required_login()
        login = source.current()
        if source.expires_soon(login):
            login = await source.refresh(login)
        return {**self._headers, **_login_headers(login)}

    def _required_login(self) -> StoredLogin:
        if self._login is None:
            raise NotSignedIn(f"No key for Anthropic is configured. {SIGN_IN}")
        return self._login


def _key_headers(key: str, betas: tuple[str, ...] = ()) -> dict[str, str]:
    return {"x-api-key": key, **_common_headers(betas)}


def _login_headers(login: Login, betas: tuple[str, ...] = ()) -> dict[str, str]:
    return {"authorization": f"Bearer {login.token}", **_common_headers((OAUTH_BETA, *betas))}


def _common_headers(betas: tuple[str, ...]) -> dict[str, str]:
    common = {"anthropic-version": VERSION, "user-agent": f"turnbridge/{__version__}"}
    return {**common, "anthropic-beta": ",".join(betas)} if betas else common
