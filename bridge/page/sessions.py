"""Who looks at the page: one-time tokens, and the sessions that they and keys are exchanged for.

Tokens and cookies are random and are kept as hashes, in memory: a restart ends all sessions. A session belongs to a
key. It ends with that key, and sees what that key may see.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from bridge.app.keys import Keyring
from bridge.errors import Unauthorized
from bridge.http.request import Request
from bridge.store.key_store import ClientKey

API = "/page/api/"
"""The beginning of the paths that show something. A cookie opens only these."""

TOKEN_SECONDS = 600.0
SESSION_SECONDS = 12 * 3600
MAX_TOKENS, MAX_SESSIONS = 16, 64
"""Beyond them the oldest ones end."""
MAX_COOKIE = 256

OPERATOR = ClientKey(name="page", sha256="0" * 64, created=datetime.fromtimestamp(0, UTC))
"""The session of a printed address, where the operator has no key of their own."""


@dataclass(frozen=True, slots=True)
class Session:
    """`label` is its key's; empty for OPERATOR."""

    label: str
    expires: float


class Sessions:
    """Makes and finds sessions. `port` distinguishes the cookies of several bridges on one host."""

    def __init__(self, keyring: Keyring, port: int, *, secure: bool, now: Callable[[], float] = time.time) -> None:
        self._keyring = keyring
        self._cookie = f"turnbridge-{port}"
        self._secure = secure
        self._now = now
        self._tokens: dict[bytes, float] = {}
        """When each ends, by its hash."""
        self._sessions: dict[bytes, Session] = {}
        keyring.on_gone.append(self._end_of_key)

    def new_token(self) -> str:
        """A token that can be exchanged for the operator's session, once, within ten minutes."""
        token = secrets.token_urlsafe(24)
        self._tokens[_digest(token)] = self._now() + TOKEN_SECONDS
        while len(self._tokens) > MAX_TOKENS:
            del self._tokens[next(iter(self._tokens))]
        return token

    async def begin(self, *, token: str | None, key: str | None) -> str:
        """Begin a session for a token or a key; returns the Set-Cookie header. Raises Unauthorized."""
        if token is not None:
            ends = self._tokens.pop(_digest(token), None)
            if ends is None or ends <= self._now():
                raise Unauthorized(
                    "This address has been used or has expired: it works once, for ten minutes after the start. "
                    "Enter an API key instead; the bridge prints at start where the key is stored.",
                    code="invalid_token",
                )
            label = self._keyring.operator or ""
        else:
            label = (await self._keyring.find((key or "").encode())).label
        cookie = secrets.token_urlsafe(32)
        now = self._now()
        self._sessions = {each: session for each, session in self._sessions.items() if session.expires > now}
        self._sessions[_digest(cookie)] = Session(label, now + SESSION_SECONDS)
        while len(self._sessions) > MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        return self._header(cookie, SESSION_SECONDS)

    def end(self, request: Request) -> str:
        """End the session of a request; returns the Set-Cookie header."""
        for cookie in self._cookies(request):
            self._sessions.pop(_digest(cookie), None)
        return self._header("", 0)

    async def key_of(self, request: Request) -> ClientKey | None:
        """The key whose session a request belongs to; None if it has none that is valid."""
        for cookie in self._cookies(request):
            session = self._sessions.get(_digest(cookie))
            if session is None or session.expires <= self._now():
                continue
            if not session.label:
                return OPERATOR
            await self._keyring.refresh()
            return self._keyring.get(session.label)
        return None

    def is_operator(self, label: str) -> bool:
        """Whether a key sees every turn."""
        return label == OPERATOR.label or self._keyring.is_operator(label)

    def _header(self, cookie: str, seconds: int) -> str:
        secure = "; Secure" if self._secure else ""
        return f"{self._cookie}={cookie}; Path=/page; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"

    def _cookies(self, request: Request) -> list[str]:
        sent = (value.decode("latin-1") for name, value in request.headers if name == b"cookie")
        pairs = (pair.strip().partition("=") for value in sent for pair in value.split(";"))
        return [value for name, _, value in pairs if name == self._cookie and 0 < len(value) <= MAX_COOKIE]

    def _end_of_key(self, label: str) -> None:
        self._sessions = {each: session for each, session in self._sessions.items() if session.label != label}


def is_of_page(path: str) -> bool:
    """Whether a path belongs to the page."""
    return path == "/" or path.startswith("/page/")


def is_open(path: str) -> bool:
    """Whether a path of the page needs neither key nor session: it shows nothing of the bridge."""
    return path in ("/", "/page/session") or path.startswith("/page/static/")


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
