"""Codex without Codex: the Responses endpoint that it uses itself, with the user's own login (seed 001)."""

from __future__ import annotations

from collections.abc import Mapping

from bridge import __version__
from bridge.auth.codex import Login, NotLoggedIn
from bridge.auth.refresh import CodexLogin
from bridge.backends.routing import unlisted_model
from bridge.backends.upstream.backend import JSON_HEADERS, UpstreamBackend
from bridge.backends.upstream.client import Asking, Request
from bridge.turn.models import FALLBACK_MODEL, ModelChoice, resolve_model
from bridge.turn.turn import Turn

ORIGINATOR = "codex_cli_rs"
CODEX_VERSION = "0.163.0"
"""The Codex whose requests these resemble."""


class CodexBackend(UpstreamBackend):
    """Turns with Codex's login. Names may have an effort at their end, as everywhere else."""

    def resolve(self, name: str) -> ModelChoice:
        return resolve_model(name, known=self.models(), default=FALLBACK_MODEL) or unlisted_model(name)


class CodexDoor:
    """A ChatGPT login goes to the ChatGPT backend, an API key to the API. A login that ran out is refreshed once."""

    def __init__(self, login: CodexLogin, *, chatgpt_url: str, api_url: str) -> None:
        self._login = login
        self._urls = {"chatgpt": f"{chatgpt_url}/responses", "api_key": f"{api_url}/responses"}

    def asking(self, turn: Turn, session: str, content: bytes) -> Asking:
        if turn.provider_key is not None:
            return _CodexAsking(self._urls, Login("api_key", turn.provider_key), None, session, content)
        return _CodexAsking(self._urls, self._login.current(), self._login, session, content)


class _CodexAsking:
    """`source` is where a newer login comes from; None for a key that came with the request."""

    def __init__(
        self, urls: Mapping[str, str], login: Login, source: CodexLogin | None, session: str, content: bytes
    ) -> None:
        self._urls = urls
        self._login = login
        self._source = source
        self._session = session
        self._content = content

    def request(self) -> Request:
        headers = {
            **JSON_HEADERS,
            "authorization": f"Bearer {self._login.token}",
            "originator": ORIGINATOR,
            "user-agent": f"{ORIGINATOR}/{CODEX_VERSION} (codex-bridge/{__version__})",
            "session_id": self._session,
        }
        if self._login.account_id is not None:
            headers["chatgpt-account-id"] = self._login.account_id
        secrets = tuple(secret for secret in (self._login.token, self._login.refresh_token) if secret)
        return Request(self._urls[self._login.mode], headers, self._content, secrets)

    async def renew(self) -> bool:
        if self._source is None:
            raise NotLoggedIn("The provider refuses the key of this request. Give another one.")
        self._login = await self._source.refresh(self._login)
        return True
