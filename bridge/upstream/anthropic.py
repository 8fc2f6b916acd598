"""Anthropic: the login of Claude Code (`.credentials.json`) and its refresh, and the requests with a login or a key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge import __version__
from bridge.core.turn import Turn
from bridge.errors import BridgeError
from bridge.protocols.messages.models import is_bound
from bridge.upstream.credentials import Attempt, FixedAttempt, LoginAttempt, Request, with_json_headers
from bridge.upstream.login import EARLY, Data, Login, LoginFile, StoredLogin, text_in
from bridge.urls import is_header_safe

if TYPE_CHECKING:
    import httpx2

TOKEN_URL = "https://console.anthropic.com/v1/oauth/token"  # noqa: S105 — a URL, not a secret
CLIENT_ID = "9d1c250a-e61b-44d9-88ed-5944d1962f5e"
SIGN_IN = "Log in with `claude` and its command /login, or set ANTHROPIC_API_KEY; then try again."
"""What to do about a login that is missing or rejected."""

_MEMBER = "claudeAiOauth"


class NotSignedIn(BridgeError, code="claude_not_logged_in", http_status=401, kind="authentication_error"):
    """Anthropic's key or Claude Code's login is missing or unusable."""


FILE = LoginFile("Claude Code's .credentials.json", "Claude Code is not logged in here", SIGN_IN, NotSignedIn)


def parse_credentials(data: Any) -> Login:
    """The login in the content of a .credentials.json. Raises NotSignedIn for any other content."""
    login = data.get(_MEMBER) if isinstance(data, dict) else None
    token = text_in(login.get("accessToken")) if isinstance(login, dict) else None
    if not isinstance(login, dict) or token is None or not is_header_safe(token):
        raise FILE.fault(f"{FILE.name} holds no login")
    expiry = _number(login.get("expiresAt"))
    expires_at = None if expiry is None else expiry / 1000
    return Login("claude", token, text_in(login.get("refreshToken")), expires_at=expires_at)


class ClaudeLogin(StoredLogin):
    """The login in one .credentials.json. `now` returns the seconds since 1970."""

    file = FILE

    def __init__(
        self, path: Path, *, client: httpx2.AsyncClient, now: Callable[[], float], token_url: str = TOKEN_URL
    ) -> None:
        super().__init__(path, token_url=token_url, client=client)
        self._now = now

    def expires_soon(self, login: Login) -> bool:
        return login.expires_at is not None and login.expires_at - EARLY <= self._now()

    def has_expired(self, login: Login) -> bool:
        return login.expires_at is not None and login.expires_at <= self._now()

    def parse(self, data: Data) -> Login:
        return parse_credentials(data)

    def renewed(self, data: Data, answer: Mapping[str, Any]) -> Data:
        login = dict(data[_MEMBER])
        login["accessToken"] = answer["access_token"]
        if text_in(answer.get("refresh_token")) is not None:
            login["refreshToken"] = answer["refresh_token"]
        if (seconds := _number(answer.get("expires_in"))) is not None:
            login["expiresAt"] = int((self._now() + seconds) * 1000)
        else:
            login.pop("expiresAt", None)
        if text_in(answer.get("scope")) is not None:
            login["scopes"] = answer["scope"].split()
        return {**data, _MEMBER: login}

    def request(self, refresh_token: str) -> Data:
        return {"grant_type": "refresh_token", "refresh_token": refresh_token, "client_id": CLIENT_ID}

    def check_renewable(self, login: Login) -> None:
        if login.refresh_token is None:
            raise NotSignedIn(f"Claude Code's login has expired, and it has no refresh token. {SIGN_IN}")

    def rejection(self, body: Mapping[str, Any]) -> BridgeError:
        return NotSignedIn(f"Claude Code's login is no longer accepted. {SIGN_IN}", code="refresh_token_refused")


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


# Anthropic

# The requests

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
        self._headers = with_json_headers(headers)
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
            return FixedAttempt(Request(self._url, headers, content, (key, *self._secrets)), NotSignedIn(rejected))

        def make(login: Login) -> Request:
            return Request(self._url, {**self._headers, **_login_headers(login, betas)}, content, login.secrets)

        return LoginAttempt(self._required_login(), make)

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
