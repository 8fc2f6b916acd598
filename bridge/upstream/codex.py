"""Codex's login: `auth.json`, in every form that Codex and related tools write, and the requests that use it.

A refresh keeps the members that it does not know.
"""

from __future__ import annotations

import base64
import binascii
import datetime
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from bridge import __version__
from bridge.core.turn import Turn
from bridge.errors import LOG_IN, BridgeError
from bridge.upstream.credentials import JSON_HEADERS, Attempt, FixedAttempt, LoginAttempt, Request
from bridge.upstream.login import Data, Login, LoginFile, StoredLogin, text_in
from bridge.urls import is_header_safe

if TYPE_CHECKING:
    import httpx2

CLIENT_ID = "app_EMoamEEZ73f0CkXaXp7hrann"
SCOPE = "openid profile email"
_CLAIM = "https://api.openai.com/auth"


class NotLoggedIn(BridgeError, code="codex_not_logged_in", http_status=401, kind="authentication_error"):
    """Codex has no usable login."""


FILE = LoginFile("auth.json", "Codex is not logged in", LOG_IN, NotLoggedIn)


def parse_auth(data: Any) -> Login:
    """The login in the content of an auth.json. Raises NotLoggedIn for any other content.

    `auth_mode` may be `chatgpt`, `api_key`, `apikey` (what Codex itself writes) or missing; then tokens win over a key.
    """
    if not isinstance(data, dict):
        raise FILE.fault("auth.json is not a JSON object")
    key, tokens = _token(data.get("OPENAI_API_KEY")), data.get("tokens")
    tokens = tokens if isinstance(tokens, dict) else {}
    access = _token(tokens.get("access_token"))
    mode = str(data.get("auth_mode") or "").replace("_", "").lower()
    if mode not in ("chatgpt", "apikey"):
        mode = "chatgpt" if access else "apikey"
    if mode == "apikey":
        if key is None:
            raise FILE.fault("auth.json has no API key")
        return Login("api_key", key)
    if access is None:
        raise FILE.fault("auth.json has no access token")
    return Login("chatgpt", access, _token(tokens.get("refresh_token")), _account_id(tokens))


def describe_auth(data: Any, now: datetime.datetime) -> dict[str, Any]:
    """The public details of an auth.json's login. Raises NotLoggedIn."""
    login = parse_auth(data)
    about: dict[str, Any] = {"mode": login.mode}
    if login.mode == "chatgpt":
        claims = _claims(login.token)
        expiry = claims.get("exp")
        about["account_id"] = login.account_id
        about["plan"] = text_in(_auth_claim(claims).get("chatgpt_plan_type"))
        about["can_refresh"] = login.refresh_token is not None
        about["expires"] = _expiry(expiry, now, about["can_refresh"]) if isinstance(expiry, int) else None
        about["last_refresh"] = text_in(data.get("last_refresh"))
    return about


def with_tokens(data: Mapping[str, Any], answer: Mapping[str, Any], refreshed_at: str) -> dict[str, Any]:
    """The content of an auth.json with the tokens of a refresh; everything else stays, and so does its form."""
    known = data.get("tokens")
    tokens = dict(known) if isinstance(known, dict) else {}
    for name in ("access_token", "refresh_token"):
        if text_in(answer.get(name)) is not None:
            tokens[name] = answer[name]
    id_token = text_in(answer.get("id_token"))
    if id_token is not None:
        form = tokens.get("id_token")
        if isinstance(form, dict):
            account = _claim(id_token)
            tokens["id_token"] = form | {"raw_jwt": id_token}
            if account is not None:
                tokens["id_token"]["chatgpt_account_id"] = account
        else:
            tokens["id_token"] = id_token
    return {**data, "tokens": tokens, "last_refresh": refreshed_at}


def _account_id(tokens: Mapping[str, Any]) -> str | None:
    id_token = tokens.get("id_token")
    if (account := _token(tokens.get("account_id"))) is not None:
        return account
    if isinstance(id_token, dict):
        account = _token(id_token.get("chatgpt_account_id"))
        id_token = id_token.get("raw_jwt")
    return account or _claim(id_token) or _claim(tokens.get("access_token"))


def _claim(jwt: Any) -> str | None:
    """The account in a token's payload."""
    return _token(_auth_claim(_claims(jwt)).get("chatgpt_account_id"))


def _auth_claim(claims: Mapping[str, Any]) -> Mapping[str, Any]:
    auth = claims.get(_CLAIM)
    return auth if isinstance(auth, dict) else {}


def _claims(jwt: Any) -> Mapping[str, Any]:
    """A token's payload. It is only sent back to its issuer, so nothing is verified."""
    if not isinstance(jwt, str) or jwt.count(".") != 2:
        return {}
    payload = jwt.split(".")[1]
    try:
        claims = orjson.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (binascii.Error, ValueError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _expiry(seconds: int, now: datetime.datetime, can_refresh: bool) -> str | None:
    try:
        then = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return None
    note = " (expired; the next request refreshes it)" if can_refresh else " (expired; log in again)"
    return f"{then:%Y-%m-%d %H:%M} UTC" + (note if then <= now else "")


def _token(value: Any) -> str | None:
    """A string that is safe in a header; None for anything else."""
    text = text_in(value)
    return text if text is not None and is_header_safe(text) else None


# The refresh

_REUSED = "the refresh token was already used, by another program with the same login"
_REJECTIONS = (
    ("reused", "refresh_token_reused", _REUSED),
    ("already", "refresh_token_reused", _REUSED),
    ("invalidated", "refresh_token_revoked", "the refresh token was revoked"),
    ("revoked", "refresh_token_revoked", "the refresh token was revoked"),
    ("expired", "refresh_token_expired", "the refresh token has expired"),
)


class CodexLogin(StoredLogin):
    """The login of one CODEX_HOME. `now` returns the time as text."""

    file = FILE

    def __init__(self, home: Path, *, token_url: str, client: httpx2.AsyncClient, now: Callable[[], str]) -> None:
        super().__init__(home / "auth.json", token_url=token_url, client=client)
        self._now = now

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
            raise NotLoggedIn(f"The provider rejects the API key in auth.json. {LOG_IN}")
        if login.refresh_token is None:
            raise NotLoggedIn(f"The login has expired, and auth.json has no refresh token. {LOG_IN}")

    def rejection(self, body: Mapping[str, Any]) -> BridgeError:
        """Its error code decides, then its message."""
        error = body.get("error")
        inner = error if isinstance(error, dict) else {}
        named = inner.get("code") or body.get("code") or error
        message = inner.get("message") or body.get("error_description") or body.get("message")
        for text in (named, message):
            for word, code, reason in _REJECTIONS:
                if isinstance(text, str) and word in text.lower():
                    return NotLoggedIn(f"Your access token could not be refreshed: {reason}. {LOG_IN}", code=code)
        return NotLoggedIn(f"Your access token could not be refreshed: the login is no longer accepted. {LOG_IN}")


# The requests

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
            return LoginAttempt(self._login, make)
        rejected = NotLoggedIn("The provider rejects the key of this request. Use another key.")
        return FixedAttempt(make(Login("api_key", turn.provider_key)), rejected)
