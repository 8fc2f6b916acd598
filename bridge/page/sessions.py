"""Access to the page: one-time tokens, and the sessions that they and keys are exchanged for.

Tokens and cookies are random and are kept as hashes, in memory: a restart ends all sessions. A session belongs to a
key. It ends with that key, and sees what that key may see.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """`label` is its key's; empty for OPERATOR."""

    label: str
    expires: float
    on_end: list[Callable[[], None]] = field(default_factory=list)
    """What is to be done when it ends before it expires."""


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
        self._end_those(lambda session: session.expires <= now)
        self._sessions[_digest(cookie)] = Session(label, now + SESSION_SECONDS)
        if len(self._sessions) > MAX_SESSIONS:
            # The oldest of the key that has most of them: no key can end the sessions of the others.
            (most, _), *_ = Counter(session.label for session in self._sessions.values()).most_common(1)
            self._end(next(each for each, session in self._sessions.items() if session.label == most))
        return self._header(cookie, SESSION_SECONDS)

    def end(self, request: Request) -> str:
        """End the session of a request; returns the Set-Cookie header."""
        for cookie in self._cookies(request):
            self._end(_digest(cookie))
        return self._header("", 0)

    def of(self, request: Request) -> Session | None:
        """The session of a request; None if it has none that is valid.

        A browser has one cookie of this name, unless another program on this host has set one, too. With two sessions
        it is not known whose the request is.
        """
        now = self._now()
        sent = (self._sessions.get(_digest(cookie)) for cookie in self._cookies(request))
        valid = {session for session in sent if session is not None and session.expires > now}
        return valid.pop() if len(valid) == 1 else None

    def named_by(self, request: Request) -> bool:
        """Whether a request has the cookie of a session, valid or not."""
        return bool(self._cookies(request))

    def seconds_left(self, session: Session) -> float:
        return session.expires - self._now()

    async def key_of(self, request: Request) -> ClientKey | None:
        """The key whose session a request belongs to; None if it has none that is valid."""
        session = self.of(request)
        if session is None or not session.label:
            return None if session is None else OPERATOR
        await self._keyring.refresh()
        return self._keyring.get(session.label)

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
        self._end_those(lambda session: session.label == label)

    def _end_those(self, which: Callable[[Session], bool]) -> None:
        for digest in [each for each, session in self._sessions.items() if which(session)]:
            self._end(digest)

    def _end(self, digest: bytes) -> None:
        session = self._sessions.pop(digest, None)
        for act in session.on_end if session is not None else ():
            act()


def is_of_page(path: str) -> bool:
    """Whether a path belongs to the page."""
    return path == "/" or path.startswith("/page/")


def is_open(path: str) -> bool:
    """Whether a path of the page needs neither key nor session: it shows nothing of the bridge."""
    return path in ("/", "/page/session") or path.startswith("/page/static/")


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
