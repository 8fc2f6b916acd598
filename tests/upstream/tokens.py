"""The logins that the scripted backend accepts, and auth.json files that hold them.

Every secret has the word `canary` in it: `assert_no_secrets` finds one wherever it turns up.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from pathlib import Path
from typing import Any, Literal, get_args

from upstream.answers import Plain, plain_json

Json = dict[str, Any]

CLAIM = "https://api.openai.com/auth"
ACCOUNT = "acct-11111111-2222"
SAID = "words-of-the-token-endpoint"
"""Is in every refusal of the token endpoint, so that a test sees when they are repeated."""

Form = Literal["chatgpt", "chatgpt_object", "no_mode", "api_key", "apikey", "no_mode_key"]
FORMS: tuple[Form, ...] = get_args(Form)
CHATGPT_FORMS: tuple[Form, ...] = ("chatgpt", "chatgpt_object", "no_mode")
KEY_FORMS: tuple[Form, ...] = ("api_key", "apikey", "no_mode_key")

State = Literal["fresh", "used", "expired", "revoked"]
_REFUSALS: dict[State, tuple[str, str, str]] = {
    "expired": ("refresh_token_expired", "Your refresh token has expired.", "refresh token has expired"),
    "used": (
        "refresh_token_reused",
        "Your refresh token has already been used to generate a new access token.",
        "refresh token was already used",
    ),
    "revoked": ("refresh_token_invalidated", "Your session has ended.", "refresh token was revoked"),
}
"""A code and its message in OpenAI's form; the description in OAuth's."""


def jwt(name: str, account: str | None = ACCOUNT, **claims: Any) -> str:
    """A token in the form of a JWT whose signature is the canary `canary-NAME`."""
    auth = {} if account is None else {CLAIM: {"chatgpt_account_id": account, "chatgpt_plan_type": "plus"}}
    parts = ({"alg": "RS256", "typ": "JWT"}, {"sub": "user", "jti": name, **auth, **claims})
    head, payload = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    return f"{head}.{payload}.canary-{name}"


class Logins:
    """What is valid now. Refresh tokens work once; a refresh ends the access token before it."""

    def __init__(self) -> None:
        self.account = ACCOUNT
        self.keys = {"sk-canary-key-0123456789"}
        self.access: set[str] = set()
        self.states: dict[str, State] = {}
        self.uses: Counter[str] = Counter()
        """How often each refresh token was sent, also those that were refused."""
        self.oauth_form = False
        """Whether refusals have OAuth's form (`invalid_grant`) or OpenAI's."""
        self._issued = 0

    @property
    def key(self) -> str:
        return next(iter(self.keys))

    def issue(self) -> Json:
        """New tokens, which are valid from now on."""
        self._issued += 1
        n = self._issued
        tokens = {
            "id_token": jwt(f"id-{n}", email="canary@example.com"),
            "access_token": jwt(f"access-{n}", exp=4102444800),
            "refresh_token": f"rt_canary-refresh-{n}",
        }
        self.access.add(tokens["access_token"])
        self.states[tokens["refresh_token"]] = "fresh"
        return tokens

    def expire_access(self) -> None:
        """From now on every access token is refused; refresh tokens still work."""
        self.access.clear()

    def refresh(self, token: str) -> Plain:
        """The token endpoint's answer to a refresh token."""
        self.uses[token] += 1
        state = self.states.get(token, "revoked")
        if state == "fresh":
            self.states[token] = "used"
            self.access.clear()
            return plain_json(200, {**self.issue(), "token_type": "Bearer", "expires_in": 864000})
        code, message, description = _REFUSALS[state]
        if self.oauth_form:
            return plain_json(400, {"error": "invalid_grant", "error_description": f"{description} {SAID} {token}"})
        error = {"message": f"{message} {SAID} {token}", "type": "invalid_request_error", "param": None, "code": code}
        return plain_json(401, {"error": error})


def auth_json(form: Form, logins: Logins, tokens: Json | None = None, **more: Any) -> Json:
    """The content of an auth.json, with tokens that are valid unless others are given; `more` goes to the top."""
    if form in KEY_FORMS:
        mode: Json = {} if form == "no_mode_key" else {"auth_mode": form}
        return {**mode, "OPENAI_API_KEY": logins.key, "tokens": None, **more}
    tokens = {**(tokens or logins.issue()), "account_id": logins.account}
    if form == "chatgpt_object":
        raw = tokens["id_token"]
        tokens["id_token"] = {"raw_jwt": raw, "chatgpt_account_id": logins.account, "email": "canary@example.com"}
    mode = {} if form == "no_mode" else {"auth_mode": "chatgpt"}
    return {**mode, "OPENAI_API_KEY": None, "tokens": tokens, "last_refresh": "2026-01-01T00:00:00.000000Z", **more}


def write_auth_json(home: Path, content: Json | list[Any]) -> Path:
    """Put an auth.json into a CODEX_HOME, which is made if it is not there."""
    home.mkdir(parents=True, exist_ok=True)
    path = home / "auth.json"
    path.write_text(json.dumps(content, indent=2))
    path.chmod(0o600)
    return path


def assert_no_secrets(*texts: Any) -> None:
    """Nothing of any token, and nothing that the token endpoint said, is in these texts (or their str and repr)."""
    for each in texts:
        for seen in (str(each), repr(each)):
            assert "canary" not in seen, seen
            assert "eyJ" not in seen, seen
            assert SAID not in seen, seen
