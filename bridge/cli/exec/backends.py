"""Who answers a run, started for it and stopped after it. Each imports what it needs: a run should begin quickly."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import trio

from bridge.backends.base import Backend
from bridge.cli.exec.options import Options, base_url
from bridge.cli.exec.output import Output
from bridge.errors import ModelNotFound, UsageError
from bridge.turn.models import resolve_model
from bridge.turn.turn import Turn

if TYPE_CHECKING:
    from bridge.config import Settings

Ready = Callable[[Turn], Awaitable[Turn]]
Serving = tuple[Backend, Ready]
"""A backend, and how a turn is made ready for it; that may raise a BridgeError too."""


def open_backend(options: Options, output: Output) -> AbstractAsyncContextManager[Serving]:
    """The backend that the options ask for. Entering it raises a BridgeError when it cannot start."""
    openers = {"mock": _mock, "app-server": _app_server, "codex": _codex, "url": _url}
    return openers[options.serving](options, output)


@asynccontextmanager
async def _mock(options: Options, output: Output) -> AsyncIterator[Serving]:
    from bridge.backends.mock import MockBackend

    yield MockBackend(options.mode, loops=options.auto_tools, sent=output.request), _as_it_is


@asynccontextmanager
async def _app_server(options: Options, output: Output) -> AsyncIterator[Serving]:
    from bridge.appserver.codex_home import read_codex_home
    from bridge.appserver.pool import Pool
    from bridge.backends import setup
    from bridge.backends.app_server import AppServerBackend
    from bridge.cli.exec.tap import ExecTap

    settings = _settings(options)
    setup.check_binary(settings)
    setup.prepare_workdir(settings.workdir)
    tap = ExecTap(sent=output.request, trace=output.trace if options.trace else None)
    pool = Pool([setup.supervisor(settings, setup.codex_launcher(settings), tap=tap)])
    backend = AppServerBackend(
        "app-server",
        pool,
        new_id=setup.new_id,
        settings=setup.child_settings(settings),
        configured=setup.configured_models(settings),
    )
    configured = read_codex_home(settings.codex_home_path).model

    async def ready(turn: Turn) -> Turn:
        await backend.wait_until_known()
        requested = options.model or configured or turn.model
        known = backend.models()
        choice = resolve_model(requested, known=known, default=backend.default_model(turn.model))
        if choice is None:
            raise ModelNotFound(requested, known)
        return _with_model(turn, requested, choice.effective, choice.effort)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.run)
        yield backend, ready
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _codex(options: Options, output: Output) -> AsyncIterator[Serving]:
    import datetime

    from bridge.auth.refresh import CodexLogin
    from bridge.backends.codex import CodexDoor

    settings = _settings(options)
    upstream = _upstream(settings.codex_base_url, settings)
    login = CodexLogin(
        settings.codex_home_path,
        token_url=settings.codex_token_url,
        client=upstream.client,
        now=lambda: datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z"),
    )
    door = CodexDoor(login, chatgpt_url=settings.codex_base_url, api_url=settings.codex_api_base_url)

    async def ready(turn: Turn) -> Turn:
        choice = resolve_model(turn.model, known=(), default=turn.model)
        return turn if choice is None else _with_model(turn, choice.requested, choice.effective, choice.effort)

    async with _responses("codex", upstream, door, options, output) as backend:
        yield backend, ready


@asynccontextmanager
async def _url(options: Options, output: Output) -> AsyncIterator[Serving]:
    from bridge.backends.upstream.door import KeyDoor

    assert options.url is not None
    settings = _settings(options)
    url = base_url(options.url)
    door = KeyDoor(f"{url}/responses", options.provider_key or _key_for(url, settings))
    async with _responses("url", _upstream(url, settings), door, options, output) as backend:
        yield backend, _as_it_is


@asynccontextmanager
async def _responses(name: str, upstream: Any, door: Any, options: Options, output: Output) -> AsyncIterator[Backend]:
    import uuid

    from bridge.backends.responses.backend import ResponsesBackend

    session = str(uuid.uuid4())  # one for all steps of the run
    trace = output.trace if options.trace else None
    async with trio.open_nursery() as nursery:
        await nursery.start(upstream.run)
        yield ResponsesBackend(name, upstream, door, new_session=lambda: session, sent=output.request, trace=trace)
        nursery.cancel_scope.cancel()


def _upstream(url: str, settings: Settings) -> Any:
    import random

    from bridge.backends.upstream.client import Patience, Upstream

    patience = Patience(settings.first_event_timeout, settings.idle_timeout, settings.turn_timeout)
    return Upstream(url, patience, jitter=random.random)


def _settings(options: Options) -> Settings:
    from bridge.config import load_settings

    return load_settings(
        codex_bin=options.codex_bin,
        codex_home=options.codex_home,
        native_tools=options.native_tools or None,
        web_search="live" if options.web_search else None,
    )


def _key_for(url: str, settings: Settings) -> str:
    """The key of the bridge at `url`. The one that was made for this machine is given to nobody else."""
    from bridge.config import api_key_file
    from bridge.urls import leads_here

    if settings.api_keys:
        return settings.api_keys[0]
    if leads_here(url):
        try:
            return api_key_file().read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            pass
    raise UsageError("--url: the bridge wants a key. Give it with --provider-key or PROXY_API_KEY.")


async def _as_it_is(turn: Turn) -> Turn:
    return turn


def _with_model(turn: Turn, requested: str, effective: str, effort: str | None) -> Turn:
    return replace(turn, model=effective, requested_model=requested, effort=turn.effort or effort)
