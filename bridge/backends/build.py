"""Backends over HTTP, built from their plans. What they need is loaded only where there is one."""

from __future__ import annotations

import datetime
import random
import time
from dataclasses import dataclass

from bridge.auth.claude import TOKEN_URL, ClaudeLogin
from bridge.auth.refresh import CodexLogin
from bridge.backends.anthropic.api import MessagesApi
from bridge.backends.anthropic.door import API_URL, AnthropicDoor
from bridge.backends.base import Backend
from bridge.backends.codex import CodexBackend, CodexDoor
from bridge.backends.mock import MockBackend
from bridge.backends.openai_compatible.backend import ChatApi, chat_url
from bridge.backends.openai_compatible.presets import CUSTOM
from bridge.backends.plan import Plan
from bridge.backends.responses.backend import PlainResponsesApi, ResponsesApi
from bridge.backends.upstream.backend import Api, Door, Record, UpstreamBackend
from bridge.backends.upstream.client import Patience, Unreachable, Upstream
from bridge.backends.upstream.discovery import ModelList
from bridge.backends.upstream.door import KeyDoor
from bridge.config import Settings
from bridge.ids import new_session


@dataclass(frozen=True, slots=True)
class Built:
    """A backend, and what must run for it."""

    backend: Backend
    upstream: Upstream | None = None


def build_backend(plan: Plan, settings: Settings, record: Record | None = None) -> Built:
    """The backend of a plan. Its upstream must be run before it is used."""
    if plan.config.type == "mock":
        return Built(MockBackend("echo", name=plan.name))
    if plan.config.type == "codex":
        return _codex(plan, settings, record)
    if plan.config.type == "anthropic":
        return _anthropic(plan, settings, record)
    url = plan.config.base_url or (plan.preset.base_url if plan.preset is not None else None)
    assert url is not None, "the configuration asks for it"
    upstream = make_upstream(url, settings, plan.config.timeout)
    api, target = (
        (ChatApi(plan.preset or CUSTOM), chat_url(url))
        if plan.config.type == "openai"
        else (PlainResponsesApi(), f"{url}/responses")
    )
    door = KeyDoor(target, plan.key, headers=plan.config.headers, needed=plan.off)
    discovery = ModelList(plan.name, upstream, f"{url}/models", door.headers) if _discovers(plan) else None
    return _built(UpstreamBackend, plan, settings, upstream, api, door, discovery, record)


def _codex(plan: Plan, settings: Settings, record: Record | None) -> Built:
    """Codex's login, used directly."""
    url = plan.config.base_url or settings.codex_base_url
    upstream = make_upstream(url, settings, plan.config.timeout)
    token_url = plan.config.token_url or settings.codex_token_url
    login = CodexLogin(
        settings.codex_home_path,
        token_url=token_url,
        client=upstream.client_to(token_url),
        now=lambda: datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z"),
    )
    door = CodexDoor(login, chatgpt_url=url, api_url=settings.codex_api_base_url)
    return _built(CodexBackend, plan, settings, upstream, ResponsesApi(), door, None, record)


def _anthropic(plan: Plan, settings: Settings, record: Record | None) -> Built:
    url = plan.config.base_url or API_URL
    upstream = make_upstream(url, settings, plan.config.timeout)
    login = None
    if plan.credentials is not None:
        token_url = plan.config.token_url or TOKEN_URL
        client = upstream.client_to(token_url)
        login = ClaudeLogin(plan.credentials, client=client, now=time.time, token_url=token_url)
    door = AnthropicDoor(url, key=plan.key, login=login, headers=plan.config.headers)
    listed = f"{door.models_url}?limit=1000"
    discovery = ModelList(plan.name, upstream, listed, door.headers) if _discovers(plan) else None
    return _built(UpstreamBackend, plan, settings, upstream, MessagesApi(), door, discovery, record)


def _built(
    backend: type[UpstreamBackend],
    plan: Plan,
    settings: Settings,
    upstream: Upstream,
    api: Api,
    door: Door,
    discovery: ModelList | None,
    record: Record | None,
) -> Built:
    made = backend(
        plan.name,
        upstream,
        api,
        door,
        new_session=new_session,
        models=tuple(plan.config.models),
        discovery=discovery,
        web_search=searches(settings),
        record=record,
    )
    return Built(made, upstream)


def _discovers(plan: Plan) -> bool:
    """Whether a list of models is asked for; never without a key."""
    return plan.config.discovery and plan.off is None


def searches(settings: Settings) -> bool:
    """Whether the operator lets clients have the web searched."""
    return settings.web_search != "off"


def make_upstream(
    url: str, settings: Settings, timeout: float | None = None, unreachable: Unreachable | None = None
) -> Upstream:
    """A way to a provider, with the operator's limits; `timeout` is this provider's own limit of silence."""
    patience = Patience(
        timeout or settings.first_event_timeout, timeout or settings.idle_timeout, settings.turn_timeout
    )
    return Upstream(url, patience, jitter=random.random, max_turns=2 * settings.max_turns, unreachable=unreachable)
