"""The login of Claude Code: `.credentials.json`, and its refresh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from bridge.auth.files import read_json
from bridge.auth.login import Data, StoredLogin
from bridge.errors import BridgeError
from bridge.urls import is_header_safe

TOKEN_URL = "https://console.anthropic.com/v1/oauth/token"  # noqa: S105 — where tokens come from is no secret
CLIENT_ID = "9d1c250a-e61b-44d9-88ed-5944d1962f5e"
EARLY = 300.0
"""Seconds before its end that a login is renewed."""
SIGN_IN = "Log in with `claude` and its command /login, or set ANTHROPIC_API_KEY; then try again."
"""What to do about a login that is missing or refused."""

_MEMBER = "claudeAiOauth"


class NotSignedIn(BridgeError):
    """There is no way in that could be used."""

    code = "claude_not_logged_in"
    http_status = 401
    kind = "authentication_error"


@dataclass(frozen=True, slots=True)
class Tokens:
    """A login. Tokens never show in its repr."""

    token: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    expires_at: float | None = None
    """Seconds since 1970; None when that is not known."""
    plan: str | None = None


def parse_credentials(data: Any) -> Tokens:
    """The login in the content of a .credentials.json. Raises NotSignedIn when there is none in it."""
    login = data.get(_MEMBER) if isinstance(data, dict) else None
    token = _text(login.get("accessToken")) if isinstance(login, dict) else None
    if not isinstance(login, dict) or token is None or not is_header_safe(token):
        raise NotSignedIn(f"Claude Code's .credentials.json holds no login. {SIGN_IN}")
    expiry = _number(login.get("expiresAt"))
    return Tokens(
        token,
        _text(login.get("refreshToken")),
        None if expiry is None else expiry / 1000,
        _text(login.get("subscriptionType")),
    )


def with_tokens(data: Mapping[str, Any], answer: Mapping[str, Any], now: float) -> dict[str, Any]:
    """The content of a .credentials.json with the tokens of a refresh in it; everything else stays."""
    login = dict(data[_MEMBER])
    login["accessToken"] = answer["access_token"]
    if _text(answer.get("refresh_token")) is not None:
        login["refreshToken"] = answer["refresh_token"]
    if (seconds := _number(answer.get("expires_in"))) is not None:
        login["expiresAt"] = int((now + seconds) * 1000)
    else:
        login.pop("expiresAt", None)
    if _text(answer.get("scope")) is not None:
        login["scopes"] = answer["scope"].split()
    return {**data, _MEMBER: login}


def read_credentials(path: Path) -> dict[str, Any]:
    """The content of a .credentials.json. Raises NotSignedIn when it is not there or cannot be read."""
    try:
        data = read_json(path)
    except FileNotFoundError:
        raise NotSignedIn(f"Claude Code is not logged in here. {SIGN_IN}") from None
    except OSError as error:
        raise NotSignedIn(f"Claude Code's .credentials.json cannot be read: {error.strerror}. {SIGN_IN}") from None
    except ValueError:
        raise NotSignedIn(f"Claude Code's .credentials.json is not valid JSON. {SIGN_IN}") from None
    if not isinstance(data, dict):
        raise NotSignedIn(f"Claude Code's .credentials.json holds no object. {SIGN_IN}")
    return data


class ClaudeLogin(StoredLogin[Tokens]):
    """The login in one .credentials.json. `now` tells the seconds since 1970."""

    def __init__(
        self, path: Path, *, client: httpx2.AsyncClient, now: Callable[[], float], token_url: str = TOKEN_URL
    ) -> None:
        super().__init__(path, token_url=token_url, client=client)
        self._now = now

    def runs_out(self, tokens: Tokens) -> bool:
        """Whether a login is to be renewed before it is used."""
        return tokens.expires_at is not None and tokens.expires_at - EARLY <= self._now()

    def has_run_out(self, tokens: Tokens) -> bool:
        """Whether a login cannot be used any more."""
        return tokens.expires_at is not None and tokens.expires_at <= self._now()

    def read(self) -> Data:
        return read_credentials(self._path)

    def parse(self, data: Data) -> Tokens:
        return parse_credentials(data)

    def renewed(self, data: Data, answer: Mapping[str, Any]) -> Data:
        return with_tokens(data, answer, self._now())

    def request(self, refresh_token: str) -> Data:
        return {"grant_type": "refresh_token", "refresh_token": refresh_token, "client_id": CLIENT_ID}

    def check_renewable(self, login: Tokens) -> None:
        if login.refresh_token is None:
            raise NotSignedIn(f"Claude Code's login has run out, and it has no refresh token. {SIGN_IN}")

    def refusal(self, said: Mapping[str, Any]) -> BridgeError:
        return NotSignedIn(f"Claude Code's login is not accepted any more. {SIGN_IN}", code="refresh_token_refused")

    def cannot_be_kept(self) -> BridgeError:
        return NotSignedIn(
            f"Claude Code's .credentials.json is too large, or nested too deep, to be written back. {SIGN_IN}"
        )


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
