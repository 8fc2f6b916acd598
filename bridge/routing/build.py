"""Builds backends over HTTP from their plans. Import it lazily: httpx2 takes long to load."""

from __future__ import annotations

import datetime
import random
import time
from collections.abc import Awaitable, Callable, Mapping

from bridge.core.backend import Backend
from bridge.ids import new_session
from bridge.protocols.chat.presets import CUSTOM
from bridge.routing.mock import MockBackend
from bridge.routing.setup import Plan
from bridge.settings import Settings
from bridge.upstream.anthropic import API_URL, TOKEN_URL, AnthropicCredentials, ClaudeLogin
from bridge.upstream.backend import (
    Api,
    ChatApi,
    CodexBackend,
    MessagesApi,
    ModelList,
    PlainResponsesApi,
    Record,
    ResponsesApi,
    UpstreamBackend,
    chat_url,
)
from bridge.upstream.client import Patience, Unreachable, Upstream
from bridge.upstream.codex import CodexCredentials, CodexLogin
from bridge.upstream.credentials import Credentials, KeyCredentials


def build_backend(plan: Plan, settings: Settings, record: Record | None = None) -> tuple[Backend, Upstream | None]:
    """The backend of a plan, and the upstream that must run for it."""
    config = plan.config
    if config.type == "mock":
        return MockBackend("echo", name=plan.name), None
    defaults = {"codex": settings.codex_base_url, "anthropic": API_URL}
    url = config.base_url or (plan.preset.base_url if plan.preset is not None else defaults.get(config.type))
    assert url is not None, "the configuration requires it"
    upstream = make_upstream(url, settings, config.timeout)
    api: Api
    credentials: Credentials
    # Where the models are listed, and what makes the headers of that request.
    listed: tuple[str, Callable[[], Awaitable[Mapping[str, str]]]] | None = None
    if config.type == "codex":
        api = ResponsesApi()
        credentials = _codex_credentials(plan, settings, upstream, url)
    elif config.type == "anthropic":
        api = MessagesApi()
        credentials = anthropic = _anthropic_credentials(plan, upstream, url)
        listed = f"{anthropic.models_url}?limit=1000", anthropic.headers
    else:
        is_chat = config.type == "openai"
        api = ChatApi(plan.preset or CUSTOM) if is_chat else PlainResponsesApi()
        target = chat_url(url) if is_chat else f"{url}/responses"
        credentials = keyed = KeyCredentials(target, plan.key, headers=config.headers, needed=plan.disabled_reason)
        listed = f"{url}/models", keyed.headers
    if not config.discovery or plan.disabled_reason is not None:  # never without a key
        listed = None
    backend = (CodexBackend if config.type == "codex" else UpstreamBackend)(
        plan.name,
        upstream,
        api,
        credentials,
        new_session=new_session,
        models=tuple(config.models),
        discovery=ModelList(plan.name, upstream, *listed) if listed is not None else None,
        web_search=settings.web_search != "off",
        record=record,
    )
    return backend, upstream


def _codex_credentials(plan: Plan, settings: Settings, upstream: Upstream, url: str) -> CodexCredentials:
    """Codex's login, without Codex."""
    token_url = plan.config.token_url or settings.codex_token_url
    login = CodexLogin(
        settings.codex_home_path,
        token_url=token_url,
        client=upstream.client_to(token_url),
        now=lambda: datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z"),
    )
    return CodexCredentials(login, chatgpt_url=url, api_url=settings.codex_api_base_url)


def _anthropic_credentials(plan: Plan, upstream: Upstream, url: str) -> AnthropicCredentials:
    login = None
    if plan.credentials is not None:
        token_url = plan.config.token_url or TOKEN_URL
        client = upstream.client_to(token_url)
        login = ClaudeLogin(plan.credentials, client=client, now=time.time, token_url=token_url)
    return AnthropicCredentials(url, key=plan.key, login=login, headers=plan.config.headers)


def make_upstream(
    url: str, settings: Settings, timeout: float | None = None, unreachable: Unreachable | None = None
) -> Upstream:
    """An upstream with the operator's limits; `timeout` is this provider's own limit for silence."""
    patience = Patience(
        timeout or settings.first_event_timeout, timeout or settings.idle_timeout, settings.turn_timeout
    )
    return Upstream(url, patience, jitter=random.random, max_turns=2 * settings.max_turns, unreachable=unreachable)
