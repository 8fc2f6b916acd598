"""The ways in: an API key, the login of Claude Code, or the key that comes with a request."""

from __future__ import annotations

from collections.abc import Mapping

from bridge import __version__
from bridge.auth.claude import SIGN_IN, ClaudeLogin, NotSignedIn, Tokens
from bridge.backends.anthropic.thinking import is_bound
from bridge.backends.upstream.backend import JSON_HEADERS
from bridge.backends.upstream.client import Asking, Request
from bridge.errors import BridgeError, UpstreamError
from bridge.turn.turn import Turn

API_URL = "https://api.anthropic.com"
VERSION = "2023-06-01"
"""The version of the API that takes all that older models know, too."""
OAUTH_BETA = "oauth-2025-04-20"
BINDING_BETA = "thinking-binding-controls-2026-08-01"
"""What `thinking.block_binding` is allowed by."""


class AnthropicDoor:
    """A key wins over a login, and the key of a request over both. `base_url` is without `/v1`."""

    def __init__(
        self,
        base_url: str = API_URL,
        *,
        key: str | None = None,
        login: ClaudeLogin | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        base_url = base_url.rstrip("/")
        self._headers = {**JSON_HEADERS, **{name.lower(): value for name, value in (headers or {}).items()}}
        self._secrets = tuple((headers or {}).values())
        self._url = f"{base_url}/v1/messages"
        self.models_url = f"{base_url}/v1/models"
        self._key = key
        self._login = login

    def asking(self, turn: Turn, session: str, content: bytes) -> Asking:
        betas = (BINDING_BETA,) if is_bound(turn) else ()
        key = turn.provider_key or self._key
        if key is not None:
            headers = {**self._headers, **key_headers(key, betas)}
            return _KeyAsking(
                Request(self._url, headers, content, (key, *self._secrets)), own=turn.provider_key is not None
            )
        if self._login is None:
            raise NotSignedIn(f"There is no key for Anthropic. {SIGN_IN}")
        return _LoginAsking(self._url, self._headers, content, self._login, betas)

    async def headers(self) -> dict[str, str]:
        """Those of a request for something else, such as the list of models. Raises a BridgeError."""
        if self._key is not None:
            return {**self._headers, **key_headers(self._key)}
        if self._login is None:
            raise NotSignedIn(f"There is no key for Anthropic. {SIGN_IN}")
        tokens = self._login.current()
        if self._login.runs_out(tokens):
            tokens = await self._login.refresh(tokens)
        return {**self._headers, **login_headers(tokens)}


def key_headers(key: str, betas: tuple[str, ...] = ()) -> dict[str, str]:
    """Who asks, with an API key."""
    return {"x-api-key": key, **_common(betas)}


def login_headers(tokens: Tokens, betas: tuple[str, ...] = ()) -> dict[str, str]:
    """Who asks, with a login."""
    return {"authorization": f"Bearer {tokens.token}", **_common((OAUTH_BETA, *betas))}


def _common(betas: tuple[str, ...]) -> dict[str, str]:
    known = {"anthropic-version": VERSION, "user-agent": f"codex-bridge/{__version__}"}
    return {**known, "anthropic-beta": ",".join(betas)} if betas else known


class _KeyAsking:
    """`own` is a key that came with the request."""

    def __init__(self, request: Request, *, own: bool) -> None:
        self._request = request
        self._own = own

    def request(self) -> Request:
        return self._request

    async def renew(self) -> bool:
        if self._own:
            raise NotSignedIn("Anthropic refuses the key of this request. Give another one.")
        raise NotSignedIn(f"Anthropic refuses the API key. {SIGN_IN}")


class _LoginAsking:
    """A login that is about to run out is renewed before it is used; one that is refused, too, but once in all."""

    def __init__(
        self, url: str, headers: Mapping[str, str], content: bytes, login: ClaudeLogin, betas: tuple[str, ...]
    ) -> None:
        self._url = url
        self._headers = headers
        self._content = content
        self._login = login
        self._betas = betas
        self._tokens = login.current()
        self._renewed = False

    def request(self) -> Request:
        if not self._renewed and self._login.runs_out(self._tokens):
            # As if the provider had said so: whoever asks will renew it and come again.
            raise UpstreamError("The login has run out.", code="upstream_unauthorized", http_status=401)
        headers = {**self._headers, **login_headers(self._tokens, self._betas)}
        secrets = tuple(secret for secret in (self._tokens.token, self._tokens.refresh_token) if secret)
        return Request(self._url, headers, self._content, secrets)

    async def renew(self) -> bool:
        early = not self._renewed and self._login.runs_out(self._tokens)
        self._renewed = True
        try:
            self._tokens = await self._login.refresh(self._tokens)
        except BridgeError:
            # What we have may still be good for minutes.
            if not early or self._login.has_run_out(self._tokens):
                raise
        return True
