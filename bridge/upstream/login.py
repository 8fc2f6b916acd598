"""A login in a file, and its refresh: what the logins of Codex and Claude Code have in common.

A refresh token works once. Therefore one refresh runs at a time, processes share a lock file, and the file is read
again before each refresh, in case another program has refreshed it. Once the request is sent, the bridge waits for its
answer and stores it even if the client is gone: without it the login would be lost.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson
import trio

from bridge.errors import BridgeError, UpstreamError
from bridge.store.private_files import encode_json, open_lock, read_json, take_lock, write_json
from bridge.urls import is_header_safe

if TYPE_CHECKING:
    import httpx2

log = logging.getLogger("bridge")

REFRESH_SECONDS = 20.0
"""For the whole response of the token endpoint. Nothing cancels it, not even Ctrl-C."""
LOCK_SECONDS = 30.0
"""How long to wait for another process that refreshes the same login."""
POLL = 0.05
EARLY = 300.0
"""How many seconds before its expiry a login is renewed."""

Data = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Login:
    """A login for requests to the provider. Its repr shows no tokens."""

    mode: Literal["chatgpt", "api_key", "claude"]
    token: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    """Renews the login, once."""
    account_id: str | None = None
    expires_at: float | None = None
    """Seconds since 1970; None if unknown."""

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(secret for secret in (self.token, self.refresh_token) if secret)


@dataclass(frozen=True, slots=True)
class LoginFile:
    """The file of a program's login, in the words of messages."""

    name: str
    missing: str
    """What it means that the file is missing."""
    remedy: str
    """How to log in."""
    error: type[BridgeError]

    def fault(self, what: str) -> BridgeError:
        return self.error(f"{what}. {self.remedy}")

    def read(self, path: Path) -> Data:
        """The content of the file. Raises `error` when it is not there or cannot be read."""
        try:
            data = read_json(path)
        except FileNotFoundError:
            raise self.fault(self.missing) from None
        except OSError as error:
            raise self.fault(f"{self.name} cannot be read: {error.strerror}") from None
        except ValueError:
            raise self.fault(f"{self.name} is not valid JSON") from None
        if not isinstance(data, dict):
            raise self.fault(f"{self.name} is not a JSON object")
        return data


class StoredLogin(ABC):
    """The login in one file. `current` reads it; `refresh` replaces tokens that are rejected or expire soon."""

    file: LoginFile

    def __init__(self, path: Path, *, token_url: str, client: httpx2.AsyncClient) -> None:
        self._path = path
        self._token_url = token_url
        self._client = client
        self._refreshing = trio.Lock()
        self._failure: tuple[str, BridgeError] | None = None
        """The rejected token of the last refresh that failed, and why it failed."""
        self._unwritten: tuple[str, Data] | None = None
        """Content that could not be written, and the token on disk that it replaces."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} unwritten={self._unwritten is not None}>"

    # Implemented for each kind of file

    @abstractmethod
    def parse(self, data: Data) -> Login:
        """The login in that content. Raises a BridgeError that says how to log in."""

    @abstractmethod
    def renewed(self, data: Data, answer: Mapping[str, Any]) -> Data:
        """The content with the tokens of a refresh; everything else stays."""

    @abstractmethod
    def request(self, refresh_token: str) -> Data:
        """The body for the token endpoint."""

    @abstractmethod
    def check_renewable(self, login: Login) -> None:
        """Raise a BridgeError if the login cannot be refreshed."""

    @abstractmethod
    def rejection(self, body: Mapping[str, Any]) -> BridgeError:
        """Why the endpoint returns no new tokens. Repeats none of the response, which may hold secrets."""

    def expires_soon(self, login: Login) -> bool:
        """Whether to renew a login before it is used."""
        return False

    def has_expired(self, login: Login) -> bool:
        return False

    # Common to all

    def current(self) -> Login:
        """The login as it is on disk. Raises a BridgeError that says how to log in."""
        data = self._newest()
        if self._unwritten is not None and data is self._unwritten[1]:
            self._write_if_free(data)
        return self.parse(data)

    async def refresh(self, rejected: Login) -> Login:
        """A login newer than the rejected one. Raises a BridgeError.

        Callers who wait for a refresh of the same login share its failure: each would only repeat it.
        """
        before = self._failure
        async with self._refreshing:
            if self._failure is not None and self._failure is not before and self._failure[0] == rejected.token:
                raise self._failure[1]
            try:
                return await self._refresh(rejected)
            except BridgeError as error:
                self._failure = rejected.token, error
                raise

    async def _refresh(self, rejected: Login) -> Login:
        async with _locked(self._path):
            data = self._newest()
            login = self.parse(data)
            if login.token != rejected.token:
                return login  # another program was faster
            self.check_renewable(login)
            try:
                encode_json(data)  # before the refresh token is used up
            except ValueError:
                raise self.file.fault(
                    f"{self.file.name} is too large, or nested too deep, to be written back"
                ) from None
            with trio.CancelScope(shield=True):
                login = await self._exchange(data, login)
            return login  # noqa: RET504 — for the type checker, the scope may swallow an exception

    async def _exchange(self, data: Data, old: Login) -> Login:
        try:
            with trio.fail_after(REFRESH_SECONDS):
                answer = await self._request_tokens(old.refresh_token or "")
        except trio.TooSlowError:
            raise refresh_failed("the token endpoint does not respond") from None
        except UpstreamError:
            raise
        except BridgeError:
            # The program that owns this login does not know our lock; it may have stored a new login by now.
            login = self.parse(self._newest())
            if login.token == old.token:
                raise
            return login
        return self._store(data, old, answer)

    def _store(self, data: Data, old: Login, answer: Mapping[str, Any]) -> Login:
        """Write the new tokens, unless the user has logged out or in again meanwhile."""
        try:
            now = self._newest()
            login = self.parse(now)
        except BridgeError:
            if not self._path.exists():
                raise
            now, login = data, old  # another program is writing it right now
        if login.token != old.token:
            return login
        new = self.renewed(now, answer)
        self._write(new)
        return self.parse(new)

    def _newest(self) -> Data:
        """The content of the file, or the content that could not be written instead."""
        data = self.file.read(self._path)
        if self._unwritten is not None and self.parse(data).token == self._unwritten[0]:
            return self._unwritten[1]
        return data

    def _write_if_free(self, data: Data) -> None:
        try:
            descriptor = open_lock(self._path)
        except BridgeError:
            return
        try:
            if take_lock(descriptor):
                self._write(data)
        finally:
            os.close(descriptor)

    def _write(self, data: Data) -> None:
        try:
            replaces = self.parse(self.file.read(self._path)).token
        except BridgeError:
            replaces = ""  # a program with an older login is writing it
        try:
            write_json(self._path, data)
            self._unwritten = None
        except (OSError, ValueError) as error:
            if self._unwritten is None:
                reason = error.strerror if isinstance(error, OSError) else error
                log.warning("cannot write %s (%s): the new login is lost at exit", self._path.name, reason)
            self._unwritten = (replaces, data)

    async def _request_tokens(self, refresh_token: str) -> Mapping[str, Any]:
        import httpx2  # slow to import; `auth status` only reads the file

        try:
            answer = await self._client.post(self._token_url, json=self.request(refresh_token), timeout=REFRESH_SECONDS)
        except httpx2.HTTPError as error:
            raise refresh_failed(type(error).__name__) from None
        body: Data | None = None
        with suppress(orjson.JSONDecodeError):
            if isinstance(found := orjson.loads(answer.content), dict):
                body = found
        if answer.status_code in (400, 401, 403) and not answer.content.lstrip().startswith(b"<"):
            raise self.rejection(body or {})
        if answer.status_code != 200 or body is None:
            raise refresh_failed(f"the token endpoint returned status {answer.status_code}")
        token = body.get("access_token")
        if not isinstance(token, str) or not is_header_safe(token):
            raise refresh_failed("the token endpoint returned no token")
        return body


def text_in(value: Any) -> str | None:
    """A text that is not empty; None for anything else."""
    return value if isinstance(value, str) and value else None


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """Hold the lock that all bridges use for the file `path`.

    Raises UpstreamError when it cannot be opened, or another process holds it for too long.
    """
    descriptor = open_lock(path)
    try:
        with trio.move_on_after(LOCK_SECONDS) as patience:
            while not take_lock(descriptor):  # noqa: ASYNC110 — the system does not report when a lock is free
                await trio.sleep(POLL)
        if patience.cancelled_caught:
            raise refresh_failed("another program has been refreshing it for too long")
        yield
    finally:
        os.close(descriptor)


def refresh_failed(reason: str) -> UpstreamError:
    """A temporary failure of a refresh."""
    return UpstreamError(
        f"Could not refresh the login: {reason}. Try again.", code="refresh_failed", severity="transient"
    )
