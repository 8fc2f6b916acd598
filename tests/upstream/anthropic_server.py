"""A scripted Messages API and token endpoint on the loopback.

    async with serving() as anthropic:
        anthropic.will(refusal(529, "overloaded_error"), Stream(answer(text("hello"))))
        ...
        assert anthropic.faults == []

Answers are taken from the script in order of arrival. A request without a valid key or token gets 401, a wrong one 400
and an entry in `faults`; neither takes an answer. When the script is empty the answer is a text: the results of calls
if the messages end with some, else `DEFAULT_TEXT`.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Any

from upstream.answers import Answer, Plain, Stream, plain_json
from upstream.anthropic_checks import PATH, body_faults, header_faults
from upstream.anthropic_events import answer, text
from upstream.connection import Request
from upstream.serving import ScriptedProvider, served, served_in_thread
from upstream.tokens import SAID

Json = dict[str, Any]

DEFAULT_TEXT = "hello from the model"
TOKEN_PATH = "/v1/oauth/token"
CLIENT_ID = "9d1c250a-e61b-44d9-88ed-5944d1962f5e"
KEY = "sk-ant-api03-canary-key-0123456789"
LIFETIME = 28800


def refusal(status: int, kind: str, message: str = "scripted refusal", **headers: str) -> Plain:
    """A refusal in Anthropic's form: `refusal(429, "rate_limit_error", retry_after="1")`."""
    return plain_json(status, {"type": "error", "error": {"type": kind, "message": message}}, **headers)


class Logins:
    """What is valid now. Refresh tokens work once; a refresh ends the access token before it."""

    def __init__(self) -> None:
        self.keys = {KEY}
        self.access: set[str] = set()
        self.fresh: set[str] = set()
        self.uses: Counter[str] = Counter()
        """How often each refresh token was sent, also those that were refused."""
        self._issued = 0

    def issue(self) -> Json:
        """New tokens, which are valid from now on."""
        self._issued += 1
        access, refresh = f"sk-ant-oat01-canary-{self._issued}", f"sk-ant-ort01-canary-{self._issued}"
        self.access.add(access)
        self.fresh.add(refresh)
        return {"access_token": access, "refresh_token": refresh}

    def refresh(self, token: str) -> Plain:
        """The token endpoint's answer to a refresh token."""
        self.uses[token] += 1
        if token not in self.fresh:
            said = {"error": "invalid_grant", "error_description": f"Refresh token not found or invalid {SAID} {token}"}
            return plain_json(400, said)
        self.fresh.discard(token)
        self.access.clear()
        extra = {"token_type": "Bearer", "expires_in": LIFETIME, "scope": "user:inference user:profile"}
        return plain_json(200, {**self.issue(), **extra})


def credentials(logins: Logins, expires_at: float | None = None, **more: Any) -> Json:
    """The content of a .credentials.json with a login that is valid; `expires_at` in seconds."""
    tokens = logins.issue()
    login = {
        "accessToken": tokens["access_token"],
        "refreshToken": tokens["refresh_token"],
        "expiresAt": None if expires_at is None else int(expires_at * 1000),
        "scopes": ["user:inference"],
        "subscriptionType": "max",
    }
    return {"claudeAiOauth": login, "mcpOAuth": {"some-server": {"accessToken": "canary-of-another"}}, **more}


def write_credentials(directory: Path, content: Any) -> Path:
    """Put a .credentials.json into a directory, which is made if it is not there."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / ".credentials.json"
    path.write_text(json.dumps(content))
    path.chmod(0o600)
    return path


class Anthropic(ScriptedProvider):
    """The API's state. In a thread, read it after `wait_for`; in trio, after `until`."""

    def __init__(self) -> None:
        super().__init__()
        self.logins = Logins()

    def __repr__(self) -> str:
        return f"<Anthropic answered={self.statuses} tokens={len(self.token_requests)} {self.faults}>"

    @property
    def token_url(self) -> str:
        return self.url + TOKEN_PATH

    def reply_to(self, request: Request) -> Answer:
        """Count a request in; what it is answered."""
        if request.path == TOKEN_PATH:
            self.token_requests.append(request)
            reply = self._token_reply(request)
        elif request.path == PATH:
            self.requests.append(request)
            faults = [*header_faults(request.header_list, request.body), *body_faults(request.body)]
            reply = self._unauthorized(request) or (self._wrong(faults) if faults else self._next(request))
        else:
            reply = self._wrong([f"no such path: {request.path}"])
        self.note()
        return reply

    def _wrong(self, faults: list[str]) -> Plain:
        self.faults += faults
        return refusal(400, "invalid_request_error", faults[0])

    def _unauthorized(self, request: Request) -> Plain | None:
        key, bearer = request.headers.get("x-api-key"), request.headers.get("authorization", "")
        if key is not None and key not in self.logins.keys:
            return refusal(401, "authentication_error", f"invalid x-api-key: {key}")
        if key is None and bearer.removeprefix("Bearer ") not in self.logins.access:
            return refusal(401, "authentication_error", f"OAuth token has expired: {bearer}")
        return None

    def _token_reply(self, request: Request) -> Answer:
        wanted = {"grant_type": "refresh_token", "client_id": CLIENT_ID}
        if not isinstance(request.body, dict) or request.body != {
            **wanted,
            "refresh_token": request.body.get("refresh_token"),
        }:
            return self._wrong(["token request: wrong body"])
        if self.token_script:
            return self.token_script.popleft()
        own = self.logins.refresh(request.body["refresh_token"])
        return Plain(own.status, own.body, own.headers, self.token_gate)

    def _next(self, request: Request) -> Answer:
        if self.script:
            reply = self.script.popleft()
            return reply(request) if callable(reply) else reply
        blocks = request.body["messages"][-1]["content"]
        results = [str(block["content"]) for block in blocks if block["type"] == "tool_result"]
        return Stream(answer(text("result: " + "; ".join(results) if results else DEFAULT_TEXT)))


def serving() -> AbstractAsyncContextManager[Anthropic]:
    """An API in this event loop; leaving the block cuts whatever streams."""
    return served(Anthropic())


def serving_in_thread() -> AbstractContextManager[Anthropic]:
    """An API in a thread of its own; leaving the block cuts whatever streams and joins the thread."""
    return served_in_thread(Anthropic(), "anthropic")
