"""Who answers a run, started for it and stopped after it. Each imports what it needs: a run should begin quickly."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import trio

from bridge.backends.base import Backend
from bridge.backends.routing import CODEX_PREFIXES, is_codex_name
from bridge.cli.exec.choice import Choice
from bridge.cli.exec.options import Options, base_url
from bridge.cli.exec.output import Output
from bridge.errors import ModelNotFound, NotReady, UpstreamError, UsageError
from bridge.ids import new_id, new_session
from bridge.turn.turn import Turn
from bridge.urls import leads_here

if TYPE_CHECKING:
    from bridge.backends.upstream.client import Upstream
    from bridge.config import Settings

WITHOUT_CODEX = (
    "Without a Codex, --url asks a bridge that runs already, --backend codex uses Codex's login alone, and --mock "
    "needs nothing."
)
NO_BRIDGE = "Start one with `codex-bridge serve`, or correct --url."
PAUSES = (0.5, 1.0)
"""Seconds between attempts to get a Codex that is ready."""

Ready = Callable[[Turn], Awaitable[Turn]]
Serving = tuple[Backend, Ready]
"""A backend, and how a turn is made ready for it; that may raise a BridgeError too."""


def open_backend(options: Options, choice: Choice, output: Output) -> AbstractAsyncContextManager[Serving]:
    """The backend that was chosen. Entering it raises a BridgeError when it cannot start."""
    openers = {"mock": _mock, "app-server": _app_server, "url": _url, "provider": _provider}
    return openers[choice.kind](options, choice, output)


@asynccontextmanager
async def _mock(options: Options, choice: Choice, output: Output) -> AsyncIterator[Serving]:
    from bridge.backends.mock import MockBackend

    backend = MockBackend(options.mode, loops=options.loops, sent=output.request)
    yield backend, _ready_for(backend, choice)


@asynccontextmanager
async def _app_server(options: Options, choice: Choice, output: Output) -> AsyncIterator[Serving]:
    from bridge.appserver.codex_home import read_codex_home
    from bridge.appserver.launch import NO_CODEX, find_codex
    from bridge.appserver.pool import Pool
    from bridge.backends import setup
    from bridge.backends.app_server import AppServerBackend
    from bridge.cli.exec.tap import ExecTap, Taps

    settings = _settings(choice)
    home = read_codex_home(settings.codex_home_path)
    setup.check_codex(settings)
    setup.prepare_workdir(settings.workdir)
    if find_codex(settings.codex_bin) is None:
        raise NotReady(f"{NO_CODEX} {WITHOUT_CODEX}", code="codex_not_found")
    shown, recorder = ExecTap(sent=output.request, trace=output.trace), output.recorder
    tap = shown if recorder is None else Taps(shown, recorder)
    pool = Pool([setup.supervisor(settings, setup.codex_launcher(settings), tap=tap)])
    backend = AppServerBackend(
        "app-server",
        pool,
        new_id=new_id,
        settings=setup.child_settings(settings),
        configured=setup.configured_models(settings),
        providers=home.providers,
        any_model=home.any_model,
        recorder=None if recorder is None else recorder.tool_calls,
    )
    named = None if options.model is not None else home.model
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pool.run)
        yield backend, _ready_for(backend, choice, named)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _provider(options: Options, choice: Choice, output: Output) -> AsyncIterator[Serving]:
    from bridge.backends.build import build_backend

    assert choice.plan is not None
    built = build_backend(choice.plan, _settings(choice), output.record)
    async with _running(built.upstream):
        yield built.backend, _ready_for(built.backend, choice)


@asynccontextmanager
async def _url(options: Options, choice: Choice, output: Output) -> AsyncIterator[Serving]:
    from bridge.backends.build import make_upstream
    from bridge.backends.responses.backend import ResponsesBackend
    from bridge.backends.upstream.client import Unreachable
    from bridge.backends.upstream.door import KeyDoor

    assert options.url is not None
    settings = _settings(choice)
    url = base_url(options.url, insecure_http=options.insecure_http)
    nobody = Unreachable(f"No bridge answers at {url.removesuffix('/v1')}", NO_BRIDGE)
    upstream = make_upstream(url, settings, unreachable=nobody)
    try:
        key = bridge_key(options, choice)
    except UsageError:
        # A bridge that is not there wants no key.
        if leads_here(url) and not await _is_listening(url):
            raise UpstreamError(f"{nobody.fact}. {nobody.remedy}", code="upstream_unreachable") from None
        raise
    door = KeyDoor(f"{url}/responses", key)
    backend = ResponsesBackend("url", upstream, door, new_session=new_session, record=output.record)
    async with _running(upstream):
        yield backend, _ready_for(backend, choice)


async def _is_listening(url: str) -> bool:
    parts = urlsplit(url)
    try:
        stream = await trio.open_tcp_stream(
            parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        )
    except OSError:
        return False
    await stream.aclose()
    return True


@asynccontextmanager
async def _running(upstream: Upstream | None) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        if upstream is not None:
            await nursery.start(upstream.run)
        yield
        nursery.cancel_scope.cancel()


def _ready_for(backend: Backend, choice: Choice, named: str | None = None) -> Ready:
    """Gives a turn its model, as the backend calls it: what the alias stands for, or what is `named` when none is."""

    async def ready(turn: Turn) -> Turn:
        await _wait_for(backend)
        requested = named or turn.requested_model
        name = choice.model or requested
        if choice.kind == "app-server" and not (choice.by_rule or _is_codex_model(backend, name)):
            raise ModelNotFound(requested, backend.models(), patterns=CODEX_PREFIXES)
        found = backend.resolve(name)
        # One conversation, however many steps it takes.
        session = turn.session or (None if choice.kind in ("mock", "app-server") else new_session())
        turn = replace(turn, model=found.effective, provider=found.provider, requested_model=requested, session=session)
        return replace(turn, effort=turn.effort or found.effort, backend=backend.name)

    return ready


def _is_codex_model(backend: Backend, name: str) -> bool:
    """Whether `serve` would pass a name that no other rule leads anywhere on to Codex."""
    return backend.takes.any_model or backend.knows(name) or is_codex_name(name)


async def _wait_for(backend: Backend) -> None:
    """Until it is ready. A Codex that dies at once is given a second chance: another one may have been in its way."""
    for pause in PAUSES:
        try:
            return await backend.wait_until_known()
        except NotReady as error:
            if error.code != "handshake_failed":
                raise
            await trio.sleep(pause)
    return await backend.wait_until_known()


def _settings(choice: Choice) -> Settings:
    assert choice.settings is not None
    return choice.settings


def bridge_key(options: Options, choice: Choice) -> str:
    """The key of the bridge at --url. The one that was made for this machine is given to nobody else."""
    from bridge.config import api_key_file

    assert options.url is not None
    if options.provider_key is not None:
        return options.provider_key
    if _settings(choice).api_keys:
        return _settings(choice).api_keys[0]
    if leads_here(base_url(options.url, insecure_http=options.insecure_http)):
        try:
            return api_key_file().read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            pass
    raise UsageError("--url: the bridge wants a key. Give it with --provider-key or PROXY_API_KEY.")
