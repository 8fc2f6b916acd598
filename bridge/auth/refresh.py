"""Refreshing a ChatGPT login: once, whoever asks, in this process and in all others.

Refresh tokens work once. So there is one refresh at a time here, a lock file between processes, and before each
refresh the file is read again: another program may have done it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import orjson
import trio

from bridge.auth.codex import (
    Login,
    LoginExpired,
    LoginReused,
    LoginRevoked,
    NotLoggedIn,
    parse_auth,
    read_auth,
    with_tokens,
    write_auth,
)
from bridge.errors import LOG_IN, UpstreamError

CLIENT_ID = "app_EMoamEEZ73f0CkXaXp7hrann"
SCOPE = "openid profile email"
LOCK_SECONDS = 30.0
REFRESH_SECONDS = 30.0
POLL = 0.05


class CodexLogin:
    """The login of one CODEX_HOME. `current` reads it; `refresh` replaces tokens that the provider refused."""

    def __init__(self, home: Path, *, token_url: str, client: httpx2.AsyncClient, now: Callable[[], str]) -> None:
        self._path = home / "auth.json"
        self._token_url = token_url
        self._client = client
        self._now = now
        self._refreshing = trio.Lock()

    def current(self) -> Login:
        """The login as it is on disk. Raises NotLoggedIn."""
        return parse_auth(read_auth(self._path))

    async def refresh(self, refused: Login) -> Login:
        """A login that is newer than the one that was refused. Raises NotLoggedIn, telling how to log in again."""
        async with self._refreshing, _locked(self._path.with_name("auth.json.lock")):
            data = read_auth(self._path)
            login = parse_auth(data)
            if login.token != refused.token:
                return login  # somebody else was quicker
            if login.mode != "chatgpt":
                raise NotLoggedIn(f"The provider refuses the API key in auth.json. {LOG_IN}")
            if login.refresh_token is None:
                raise NotLoggedIn(f"The login has run out, and auth.json has no refresh token. {LOG_IN}")
            new = with_tokens(data, await self._ask(login.refresh_token), self._now())
            write_auth(self._path, new)
            return parse_auth(new)

    async def _ask(self, refresh_token: str) -> Mapping[str, Any]:
        body = {"client_id": CLIENT_ID, "grant_type": "refresh_token", "refresh_token": refresh_token, "scope": SCOPE}
        try:
            answer = await self._client.post(self._token_url, json=body, timeout=REFRESH_SECONDS)
        except httpx2.HTTPError as error:
            raise UpstreamError(
                f"The login could not be refreshed: {type(error).__name__}. Try again.",
                code="refresh_failed",
                severity="transient",
            ) from None
        if answer.status_code >= 500 or answer.status_code == 429:
            raise UpstreamError(
                f"The login could not be refreshed: the token endpoint answers {answer.status_code}. Try again.",
                code="refresh_failed",
                severity="transient",
            )
        if answer.status_code != 200:
            raise refusal(answer.content)
        try:
            tokens = orjson.loads(answer.content)
        except orjson.JSONDecodeError:
            tokens = None
        if not isinstance(tokens, dict) or not isinstance(tokens.get("access_token"), str):
            raise UpstreamError("The token endpoint answered without a token. Try again.", code="refresh_failed")
        return tokens


_REFUSALS: tuple[tuple[str, type[NotLoggedIn], str], ...] = (
    ("expired", LoginExpired, "the refresh token has expired"),
    ("reused", LoginReused, "the refresh token was already used, by another program with the same login"),
    ("already used", LoginReused, "the refresh token was already used, by another program with the same login"),
    ("invalidated", LoginRevoked, "the refresh token was revoked"),
    ("revoked", LoginRevoked, "the refresh token was revoked"),
)


def refusal(body: bytes) -> NotLoggedIn:
    """Why the token endpoint gives no new tokens. What it says is looked at, never repeated."""
    said = body[:65536].decode("utf-8", "replace").lower()
    for word, error, reason in _REFUSALS:
        if word in said:
            return error(f"Your access token could not be refreshed: {reason}. {LOG_IN}")
    return NotLoggedIn(f"Your access token could not be refreshed: the login is not accepted any more. {LOG_IN}")


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """Hold a lock file that all bridges on this CODEX_HOME use. It is freed by the system when we die."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with trio.move_on_after(LOCK_SECONDS) as patience:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await trio.sleep(POLL)
        if patience.cancelled_caught:
            raise UpstreamError(
                "Another program has been refreshing the login for too long. Try again.", code="refresh_failed"
            )
        yield
    finally:
        os.close(descriptor)
