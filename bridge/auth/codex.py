"""Codex's login on disk: `auth.json`, in every form that Codex and its relatives write.

What a refresh writes keeps what it does not know.
"""

from __future__ import annotations

import base64
import binascii
import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

from bridge.auth.files import read_json
from bridge.errors import LOG_IN, BridgeError
from bridge.urls import is_header_safe

_CLAIM = "https://api.openai.com/auth"


class NotLoggedIn(BridgeError):
    """There is no login that could be used."""

    code = "codex_not_logged_in"
    http_status = 401
    kind = "authentication_error"


class LoginExpired(NotLoggedIn):
    """The refresh token is too old."""

    code = "refresh_token_expired"


class LoginReused(NotLoggedIn):
    """The one-time refresh token was used by another program."""

    code = "refresh_token_reused"


class LoginRevoked(NotLoggedIn):
    """The refresh token was taken back."""

    code = "refresh_token_revoked"


@dataclass(frozen=True, slots=True)
class Login:
    """What a request to the provider needs. Tokens never show in its repr."""

    mode: Literal["chatgpt", "api_key"]
    token: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    account_id: str | None = None


def parse_auth(data: Any) -> Login:
    """The login in the content of an auth.json. Raises NotLoggedIn when there is none in it.

    `auth_mode` may be `chatgpt`, `api_key`, `apikey` (what Codex itself writes) or missing; then tokens win over a key.
    """
    if not isinstance(data, dict):
        raise NotLoggedIn(f"auth.json holds no object. {LOG_IN}")
    key, tokens = _token(data.get("OPENAI_API_KEY")), data.get("tokens")
    tokens = tokens if isinstance(tokens, dict) else {}
    access = _token(tokens.get("access_token"))
    mode = str(data.get("auth_mode") or "").replace("_", "").lower()
    if mode not in ("chatgpt", "apikey"):
        mode = "chatgpt" if access else "apikey"
    if mode == "apikey":
        if key is None:
            raise NotLoggedIn(f"auth.json has no API key. {LOG_IN}")
        return Login("api_key", key)
    if access is None:
        raise NotLoggedIn(f"auth.json has no access token. {LOG_IN}")
    return Login("chatgpt", access, _token(tokens.get("refresh_token")), _account_id(tokens))


def describe_auth(data: Any, now: datetime.datetime) -> dict[str, Any]:
    """What may be shown of an auth.json's login. Raises NotLoggedIn."""
    login = parse_auth(data)
    about: dict[str, Any] = {"mode": login.mode}
    if login.mode == "chatgpt":
        claims = _claims(login.token)
        expiry = claims.get("exp")
        about["account_id"] = login.account_id
        about["plan"] = _text(_auth_claim(claims).get("chatgpt_plan_type"))
        about["can_refresh"] = login.refresh_token is not None
        about["expires"] = _expiry(expiry, now, about["can_refresh"]) if isinstance(expiry, int) else None
        about["last_refresh"] = _text(data.get("last_refresh"))
    return about


def with_tokens(data: Mapping[str, Any], answer: Mapping[str, Any], refreshed_at: str) -> dict[str, Any]:
    """The content of an auth.json with the tokens of a refresh in it; everything else stays, and so does its form."""
    known = data.get("tokens")
    tokens = dict(known) if isinstance(known, dict) else {}
    for name in ("access_token", "refresh_token"):
        if _text(answer.get(name)) is not None:
            tokens[name] = answer[name]
    id_token = _text(answer.get("id_token"))
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


def read_auth(path: Path) -> dict[str, Any]:
    """The content of an auth.json. Raises NotLoggedIn when it is not there or cannot be read."""
    try:
        data = read_json(path)
    except FileNotFoundError:
        raise NotLoggedIn(f"Codex is not logged in. {LOG_IN}") from None
    except OSError as error:
        raise NotLoggedIn(f"auth.json cannot be read: {error.strerror}. {LOG_IN}") from None
    except ValueError:
        raise NotLoggedIn(f"auth.json is not valid JSON. {LOG_IN}") from None
    if not isinstance(data, dict):
        raise NotLoggedIn(f"auth.json holds no object. {LOG_IN}")
    return data


def _account_id(tokens: Mapping[str, Any]) -> str | None:
    id_token = tokens.get("id_token")
    if (told := _token(tokens.get("account_id"))) is not None:
        return told
    if isinstance(id_token, dict):
        told = _token(id_token.get("chatgpt_account_id"))
        id_token = id_token.get("raw_jwt")
    return told or _claim(id_token) or _claim(tokens.get("access_token"))


def _claim(jwt: Any) -> str | None:
    """The account in a token's payload."""
    return _token(_auth_claim(_claims(jwt)).get("chatgpt_account_id"))


def _auth_claim(claims: Mapping[str, Any]) -> Mapping[str, Any]:
    auth = claims.get(_CLAIM)
    return auth if isinstance(auth, dict) else {}


def _claims(jwt: Any) -> Mapping[str, Any]:
    """A token's payload. It is only read back to whoever made it, so nothing is verified."""
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
    over = " (over; the next request refreshes it)" if can_refresh else " (over; log in again)"
    return f"{then:%Y-%m-%d %H:%M} UTC" + (over if then <= now else "")


def _token(value: Any) -> str | None:
    """What can stand in a header; anything else is as good as nothing."""
    text = _text(value)
    return text if text is not None and is_header_safe(text) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
