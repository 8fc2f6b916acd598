"""Refreshing Codex's ChatGPT login."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2

from bridge.auth.codex import (
    Login,
    LoginExpired,
    LoginReused,
    LoginRevoked,
    NotLoggedIn,
    parse_auth,
    read_auth,
    with_tokens,
)
from bridge.auth.login import Data, StoredLogin
from bridge.errors import LOG_IN, BridgeError

CLIENT_ID = "app_EMoamEEZ73f0CkXaXp7hrann"
SCOPE = "openid profile email"


class CodexLogin(StoredLogin[Login]):
    """The login of one CODEX_HOME."""

    def __init__(self, home: Path, *, token_url: str, client: httpx2.AsyncClient, now: Callable[[], str]) -> None:
        super().__init__(home / "auth.json", token_url=token_url, client=client)
        self._now = now

    def read(self) -> Data:
        return read_auth(self._path)

    def parse(self, data: Data) -> Login:
        return parse_auth(data)

    def renewed(self, data: Data, answer: Mapping[str, Any]) -> Data:
        return with_tokens(data, answer, self._now())

    def request(self, refresh_token: str) -> Data:
        return {
            "client_id": CLIENT_ID,
            "grant_type": "refresh_token",
            "refresh_token": refresh_token,
            "scope": SCOPE,
        }

    def check_renewable(self, login: Login) -> None:
        if login.mode != "chatgpt":
            raise NotLoggedIn(f"The provider refuses the API key in auth.json. {LOG_IN}")
        if login.refresh_token is None:
            raise NotLoggedIn(f"The login has run out, and auth.json has no refresh token. {LOG_IN}")

    def refusal(self, said: Mapping[str, Any]) -> BridgeError:
        return refusal(said)

    def cannot_be_kept(self) -> BridgeError:
        return NotLoggedIn(f"auth.json is too large, or nested too deep, to be written back. {LOG_IN}")


_REUSED = "the refresh token was already used, by another program with the same login"
_REFUSALS: tuple[tuple[str, type[NotLoggedIn], str], ...] = (
    ("reused", LoginReused, _REUSED),
    ("already", LoginReused, _REUSED),
    ("invalidated", LoginRevoked, "the refresh token was revoked"),
    ("revoked", LoginRevoked, "the refresh token was revoked"),
    ("expired", LoginExpired, "the refresh token has expired"),
)


def refusal(said: Mapping[str, Any]) -> NotLoggedIn:
    """Why the token endpoint gives no new tokens: its code decides, then its words. Nothing of it is repeated."""
    error = said.get("error")
    inner = error if isinstance(error, dict) else {}
    code = inner.get("code") or said.get("code") or error
    words = inner.get("message") or said.get("error_description") or said.get("message")
    for text in (code, words):
        for word, kind, reason in _REFUSALS:
            if isinstance(text, str) and word in text.lower():
                return kind(f"Your access token could not be refreshed: {reason}. {LOG_IN}")
    return NotLoggedIn(f"Your access token could not be refreshed: the login is not accepted any more. {LOG_IN}")
