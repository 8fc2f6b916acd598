"""Refreshing a ChatGPT login: once, whoever asks, in this process and in all others.

Refresh tokens work once. So there is one refresh at a time here, a lock file between processes, and before each
refresh the file is read again: another program may have done it. Once the endpoint has been asked, its answer is waited
for and kept, also when nobody wants it any more: without it the login would be lost.
"""

from __future__ import annotations

import fcntl
import logging
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
    encode_auth,
    parse_auth,
    read_auth,
    with_tokens,
    write_auth,
)
from bridge.errors import LOG_IN, BridgeError, UpstreamError

log = logging.getLogger("bridge")

CLIENT_ID = "app_EMoamEEZ73f0CkXaXp7hrann"
SCOPE = "openid profile email"
LOCK_SECONDS = 30.0
REFRESH_SECONDS = 20.0
"""For the token endpoint's whole answer. Nothing, not even Ctrl-C, cuts it short."""
POLL = 0.05


class _Flight:
    """One refresh under way, and what it came to for all who wait for it."""

    def __init__(self, refused: str) -> None:
        self.refused = refused
        self.over = trio.Event()
        self.login: Login | None = None
        self.error: BridgeError | None = None


class CodexLogin:
    """The login of one CODEX_HOME. `current` reads it; `refresh` replaces tokens that the provider refused."""

    def __init__(self, home: Path, *, token_url: str, client: httpx2.AsyncClient, now: Callable[[], str]) -> None:
        self._path = home / "auth.json"
        self._token_url = token_url
        self._client = client
        self._now = now
        self._flight: _Flight | None = None
        self._unwritten: tuple[str, Login] | None = None
        """A login that could not be written, and the token on disk that it replaces."""

    def current(self) -> Login:
        """The login as it is on disk. Raises NotLoggedIn."""
        return self._newest(parse_auth(read_auth(self._path)))

    async def refresh(self, refused: Login) -> Login:
        """A login that is newer than the one that was refused. Raises NotLoggedIn, telling how to log in again."""
        while self._flight is not None and self._flight.refused == refused.token:
            flight = self._flight
            await flight.over.wait()
            if flight.login is not None:
                return flight.login
            if flight.error is not None:
                raise flight.error
            # Whoever was refreshing has been cancelled before it asked.
        flight = self._flight = _Flight(refused.token)
        try:
            flight.login = await self._refresh(refused)
        except BridgeError as error:
            flight.error = error
            raise
        finally:
            if self._flight is flight:
                self._flight = None
            flight.over.set()
        return flight.login

    async def _refresh(self, refused: Login) -> Login:
        async with _locked(self._path.resolve().with_name("auth.json.lock")):
            data = read_auth(self._path)
            login = self._newest(parse_auth(data))
            if login.token != refused.token:
                return login  # somebody else was quicker
            if login.mode != "chatgpt":
                raise NotLoggedIn(f"The provider refuses the API key in auth.json. {LOG_IN}")
            if login.refresh_token is None:
                raise NotLoggedIn(f"The login has run out, and auth.json has no refresh token. {LOG_IN}")
            _check_writable(data)
            with trio.CancelScope(shield=True):
                login = await self._exchange(login, login.refresh_token)
            return login  # noqa: RET504 — a scope may swallow, says the type checker

    async def _exchange(self, old: Login, refresh_token: str) -> Login:
        try:
            with trio.fail_after(REFRESH_SECONDS):
                answer = await self._ask(refresh_token)
        except trio.TooSlowError:
            raise _trouble("the token endpoint does not answer") from None
        except LoginReused:
            # A Codex on the same login knows nothing of our lock; its new login may be there by now.
            login = parse_auth(read_auth(self._path))
            if login.token == old.token:
                raise
            return login
        return self._keep(old, answer)

    def _keep(self, old: Login, answer: Mapping[str, Any]) -> Login:
        """Write the new tokens down, unless somebody has logged out, or in anew, in the meantime."""
        data = read_auth(self._path)
        if parse_auth(data).token != old.token and self._unwritten is None:
            return parse_auth(data)
        new = with_tokens(data, answer, self._now())
        login = parse_auth(new)
        try:
            write_auth(self._path, new)
        except (OSError, ValueError) as error:
            self._unwritten = (parse_auth(data).token, login)
            log.warning("auth.json cannot be written (%s): the refreshed login lasts as long as this program", error)
        return login

    def _newest(self, login: Login) -> Login:
        if self._unwritten is not None and self._unwritten[0] == login.token:
            return self._unwritten[1]
        return login

    async def _ask(self, refresh_token: str) -> Mapping[str, Any]:
        body = {"client_id": CLIENT_ID, "grant_type": "refresh_token", "refresh_token": refresh_token, "scope": SCOPE}
        try:
            answer = await self._client.post(self._token_url, json=body, timeout=REFRESH_SECONDS)
        except httpx2.HTTPError as error:
            raise _trouble(type(error).__name__) from None
        said = _json_object(answer.content)
        if answer.status_code in (400, 401, 403) and not answer.content.lstrip().startswith(b"<"):
            raise refusal(said or {})
        if answer.status_code != 200 or said is None:
            raise _trouble(f"the token endpoint answers {answer.status_code}")
        if not isinstance(said.get("access_token"), str) or not said["access_token"]:
            raise _trouble("the token endpoint answered without a token")
        return said


_REFUSALS: tuple[tuple[str, type[NotLoggedIn], str], ...] = (
    ("reused", LoginReused, "the refresh token was already used, by another program with the same login"),
    ("already", LoginReused, "the refresh token was already used, by another program with the same login"),
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


def _trouble(what: str) -> UpstreamError:
    return UpstreamError(
        f"The login could not be refreshed: {what}. Try again.", code="refresh_failed", severity="transient"
    )


def _json_object(content: bytes) -> dict[str, Any] | None:
    try:
        data = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    return data if isinstance(data, dict) else None


def _check_writable(data: Mapping[str, Any]) -> None:
    """What cannot be written back must be known before the token is used."""
    try:
        encode_auth(data)
    except ValueError:
        raise NotLoggedIn(f"auth.json is nested too deep to be written back. {LOG_IN}") from None


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """Hold a lock file that all bridges on this CODEX_HOME use. It is freed by the system when we die."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise UpstreamError(
            f"The login cannot be refreshed: {path.name} in CODEX_HOME cannot be opened ({error.strerror}).",
            code="refresh_failed",
        ) from None
    try:
        with trio.move_on_after(LOCK_SECONDS) as patience:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await trio.sleep(POLL)
        if patience.cancelled_caught:
            raise _trouble("another program has been refreshing it for too long")
        yield
    finally:
        os.close(descriptor)
