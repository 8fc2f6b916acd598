"""A login in a file, and its refresh: what Codex's and Claude Code's have in common.

Refresh tokens work once. So there is one refresh at a time here, a lock file between processes, and before each
refresh the file is read again: another program may have done it. Once the endpoint has been asked, its answer is waited
for and kept, also when nobody wants it any more: without it the login would be lost.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import httpx2
import orjson
import trio

from bridge.auth.files import encode_json, write_json
from bridge.auth.flight import Flights, locked, open_lock, refresh_trouble, take_lock
from bridge.errors import BridgeError, UpstreamError
from bridge.urls import is_header_safe

log = logging.getLogger("bridge")

REFRESH_SECONDS = 20.0
"""For the token endpoint's whole answer. Nothing, not even Ctrl-C, cuts it short."""


class Tokens(Protocol):
    """What every login has."""

    @property
    def token(self) -> str:
        """What goes into a header."""

    @property
    def refresh_token(self) -> str | None:
        """What it can be renewed with, once."""


T = TypeVar("T", bound=Tokens)
Data = dict[str, Any]


class StoredLogin(ABC, Generic[T]):
    """The login in one file. `current` reads it; `refresh` replaces tokens that are, or will be, refused."""

    def __init__(self, path: Path, *, token_url: str, client: httpx2.AsyncClient) -> None:
        self._path = path
        self._token_url = token_url
        self._client = client
        self._flights: Flights[T] = Flights()
        self._unwritten: tuple[str, Data] | None = None
        """What could not be written, and the token on disk that it replaces."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} unwritten={self._unwritten is not None}>"

    # What each kind of file adds.

    @abstractmethod
    def read(self) -> Data:
        """The content of the file. Raises a BridgeError that tells how to log in."""

    @abstractmethod
    def parse(self, data: Data) -> T:
        """The login in it. Raises a BridgeError that tells how to log in."""

    @abstractmethod
    def renewed(self, data: Data, answer: Mapping[str, Any]) -> Data:
        """The content with the tokens of a refresh in it; everything else stays."""

    @abstractmethod
    def request(self, refresh_token: str) -> Data:
        """What the token endpoint is sent."""

    @abstractmethod
    def check_renewable(self, login: T) -> None:
        """Raise a BridgeError for a login that cannot be refreshed."""

    @abstractmethod
    def refusal(self, said: Mapping[str, Any]) -> BridgeError:
        """Why the endpoint gives no new tokens. Nothing that it says is repeated."""

    @abstractmethod
    def cannot_be_kept(self) -> BridgeError:
        """The error for a file that could not be written back, known before the token is used."""

    # What they share.

    def current(self) -> T:
        """The login as it is on disk. Raises a BridgeError that tells how to log in."""
        data = self._newest()
        if self._unwritten is not None and data is self._unwritten[1]:
            self._write_if_free(data)
        return self.parse(data)

    async def refresh(self, refused: T) -> T:
        """A login that is newer than the one that was refused. Raises a BridgeError."""
        return await self._flights.join(refused.token, lambda: self._refresh(refused))

    async def _refresh(self, refused: T) -> T:
        async with locked(self._path):
            data = self._newest()
            login = self.parse(data)
            if login.token != refused.token:
                return login  # somebody else was quicker
            self.check_renewable(login)
            try:
                encode_json(data)
            except ValueError:
                raise self.cannot_be_kept() from None
            with trio.CancelScope(shield=True):
                login = await self._exchange(data, login)
            return login  # noqa: RET504 — a scope may swallow, says the type checker

    async def _exchange(self, data: Data, old: T) -> T:
        try:
            with trio.fail_after(REFRESH_SECONDS):
                answer = await self._ask(old.refresh_token or "")
        except trio.TooSlowError:
            raise refresh_trouble("the token endpoint does not answer") from None
        except UpstreamError:
            raise
        except BridgeError:
            # The program that this login belongs to knows nothing of our lock; its new login may be there by now.
            login = self.parse(self._newest())
            if login.token == old.token:
                raise
            return login
        return self._keep(data, old, answer)

    def _keep(self, data: Data, old: T, answer: Mapping[str, Any]) -> T:
        """Write the new tokens down, unless somebody has logged out, or in anew, in the meantime."""
        try:
            now = self._newest()
            login = self.parse(now)
        except BridgeError:
            if not self._path.exists():
                raise
            now, login = data, old  # somebody is just writing it
        if login.token != old.token:
            return login
        new = self.renewed(now, answer)
        self._write(new)
        return self.parse(new)

    def _newest(self) -> Data:
        """What the file holds, or should: a login that could not be written stands for the one that it replaces."""
        data = self.read()
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
            replaces = self.parse(self.read()).token
        except BridgeError:
            replaces = ""  # it is being written, by somebody who has an older login
        try:
            write_json(self._path, data)
            self._unwritten = None
        except (OSError, ValueError) as error:
            if self._unwritten is None:
                what = error.strerror if isinstance(error, OSError) else error
                log.warning("%s cannot be written (%s): the login lasts as long as this program", self._path.name, what)
            self._unwritten = (replaces, data)

    async def _ask(self, refresh_token: str) -> Mapping[str, Any]:
        body = self.request(refresh_token)
        try:
            answer = await self._client.post(self._token_url, json=body, timeout=REFRESH_SECONDS)
        except httpx2.HTTPError as error:
            raise refresh_trouble(type(error).__name__) from None
        said = _json_object(answer.content)
        if answer.status_code in (400, 401, 403) and not answer.content.lstrip().startswith(b"<"):
            raise self.refusal(said or {})
        if answer.status_code != 200 or said is None:
            raise refresh_trouble(f"the token endpoint answers {answer.status_code}")
        token = said.get("access_token")
        if not isinstance(token, str) or not is_header_safe(token):
            raise refresh_trouble("the token endpoint answered without a token")
        return said


def _json_object(content: bytes) -> Data | None:
    try:
        data = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    return data if isinstance(data, dict) else None
