"""The backend of a run: chosen by a flag or by the model's name, started for the run and stopped after it.

Imports are within functions: a run should begin quickly.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import trio

from bridge.cli.exec.options import Options, base_url
from bridge.cli.exec.output import Output
from bridge.core.backend import Backend
from bridge.core.models import CODEX_PREFIXES, MOCK, is_codex_name
from bridge.core.turn import Turn
from bridge.errors import ConfigError, ModelNotFound, NotReady, UpstreamError, UsageError
from bridge.ids import new_session
from bridge.routing.mock import MockBackend
from bridge.urls import leads_here

if TYPE_CHECKING:
    from bridge.appserver.supervisor import Pool
    from bridge.core.observer import Owner
    from bridge.routing.setup import Plan
    from bridge.settings import Settings
    from bridge.upstream.client import Upstream

WITHOUT_CODEX = (
    "Without Codex, use --url to ask a running bridge, --backend codex to use Codex's login alone, or --mock, which "
    "needs nothing."
)
NO_KEY = "--url: the bridge needs a key. Set it with --provider-key or PROXY_API_KEY."
NO_BRIDGE = "Start one with `turnbridge serve`, or correct --url."
PAUSES = (0.5, 1.0)
"""Seconds between attempts to start Codex."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The backend of a run. Nothing is started yet.

    `alias_of` is what an alias stands for, `default_model` the model for a run that names none. `by_rule`: a flag, a
    pattern or an alias names the backend, so that the model need not be listed. `key` is for the provider or bridge.
    """

    kind: Literal["mock", "url", "app-server", "provider"]
    settings: Settings | None = None
    plan: Plan | None = None
    alias_of: str | None = None
    default_model: str | None = None
    by_rule: bool = False
    url: str = ""
    key: str | None = field(default=None, repr=False)

    @property
    def speaks_responses(self) -> bool:
        """Whether input items can be sent exactly as given."""
        if self.plan is not None:
            return self.plan.config.type in ("codex", "responses", "mock")
        return self.kind in ("mock", "url")


def choose(options: Options) -> Choice:
    """Choose the backend of a run. Raises UsageError or ConfigError."""
    if options.is_mock:
        return Choice("mock")
    from bridge.settings.file import load_configuration

    settings, config = load_configuration(
        config=options.config,
        codex_bin=options.codex_bin,
        codex_home=options.codex_home,
        native_tools=options.native_tools or None,
        web_search="live" if options.web_search else None,
    )
    if options.url is not None:
        url = base_url(options.url, insecure_http=options.insecure_http)
        return Choice("url", settings, url=url, key=find_bridge_key(url, options.provider_key, settings))
    from bridge.appserver.codex_home import read_codex_home
    from bridge.routing.setup import app_server_name, configured_models, plan_backends, plan_named, route

    home = read_codex_home(settings.codex_home_path)
    plans = {plan.name: plan for plan in plan_backends(config, os.environ, Path.home())}
    keyed = options.provider_key is not None
    name, model = options.backend, None
    if name is None and options.model is not None and options.model not in configured_models(settings):
        others = list(plans.values())
        if not keyed and home.any_model:
            others = [plan for plan in others if plan.disabled_reason is None or not plan.implied]
        name, model = route(options.model, config, settings, others)
    by_rule = name is not None or model is not None
    name = name or config.routing.default or "app-server"
    if name == MOCK:
        return Choice("mock", settings)
    if name in ("app-server", app_server_name(config)):
        if keyed:
            raise UsageError("--provider-key needs another backend or --url: Codex itself uses its own login.")
        return Choice("app-server", settings, alias_of=model, default_model=home.model, by_rule=by_rule)
    plan = plans.get(name) or plan_named(name, os.environ)
    if plan is None:
        known = dict.fromkeys(("app-server", "codex", "mock", *plans))
        raise UsageError(f"Invalid --backend {name[:40]!r}. Choose one of {', '.join(known)}.")
    if plan.disabled_reason is not None and not keyed:
        raise ConfigError(f"{plan.disabled_reason} Set it, or give --provider-key.")
    return Choice("provider", settings, plan, model, key=plan.key)


@asynccontextmanager
async def open_backend(options: Options, choice: Choice, output: Output) -> AsyncIterator[Backend]:
    """The backend that was chosen. Raises a BridgeError when it cannot start."""
    pool: Pool | None = None
    upstream: Upstream | None = None
    backend: Backend
    if choice.settings is None or choice.kind == "mock":
        backend = MockBackend(options.mode, loops=options.loops, sent=output.request)
    elif choice.kind == "app-server":
        backend, pool = _app_server(choice.settings, output)
    elif choice.plan is not None:
        from bridge.routing.build import build_backend

        backend, upstream = build_backend(choice.plan, choice.settings, output.record)
    else:
        backend, upstream = await _connect_to_bridge(choice, choice.settings, output)
    async with trio.open_nursery() as nursery:
        if pool is not None:
            nursery.start_soon(pool.run)
        if upstream is not None:
            await nursery.start(upstream.run)
        yield backend
        nursery.cancel_scope.cancel()


def _app_server(settings: Settings, output: Output) -> tuple[Backend, Pool]:
    from bridge.appserver.codex_home import read_codex_home
    from bridge.appserver.launch import NO_CODEX, find_codex
    from bridge.appserver.supervisor import Pool
    from bridge.routing import setup

    # A run has one conversation, which would not use a thread that is started ahead.
    settings = settings.model_copy(update={"warm_threads": 0})
    home = read_codex_home(settings.codex_home_path)
    setup.check_codex(settings)
    setup.prepare_workdir(settings.workdir)
    if find_codex(settings.codex_bin) is None:
        raise NotReady(f"{NO_CODEX} {WITHOUT_CODEX}", code="codex_not_found")
    pool = Pool([setup.supervisor(settings, setup.codex_launcher(settings), tap=ExecTap(output))])
    models, recorder = setup.configured_models(settings), output.recorder and output.recorder.tool_calls
    backend = setup.app_server_backend("app-server", pool, settings, home, configured=models, recorder=recorder)
    return backend, pool


async def _connect_to_bridge(choice: Choice, settings: Settings, output: Output) -> tuple[Backend, Upstream]:
    """The bridge at --url as a backend."""
    from bridge.routing.build import make_upstream
    from bridge.upstream.backend import ResponsesApi, UpstreamBackend
    from bridge.upstream.client import Unreachable
    from bridge.upstream.credentials import KeyCredentials

    unreachable = Unreachable(f"No bridge answers at {choice.url.removesuffix('/v1')}", NO_BRIDGE)
    if choice.key is None:
        # Without a bridge there, the missing key is not the problem.
        if leads_here(choice.url) and not await _is_listening(choice.url):
            raise UpstreamError(f"{unreachable.fact}. {unreachable.remedy}", code="upstream_unreachable")
        raise UsageError(NO_KEY)
    upstream = make_upstream(choice.url, settings, unreachable=unreachable)
    credentials, api = KeyCredentials(f"{choice.url}/responses", choice.key), ResponsesApi()
    return UpstreamBackend("url", upstream, api, credentials, new_session=new_session, record=output.record), upstream


async def _is_listening(url: str) -> bool:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        stream = await trio.open_tcp_stream(parts.hostname or "", port)
    except OSError:
        return False
    await stream.aclose()
    return True


async def resolve(backend: Backend, choice: Choice, turn: Turn) -> Turn:
    """The turn with its model, as the backend calls it. Waits until the backend is ready. Raises a BridgeError."""
    await _wait_for(backend)
    name = choice.alias_of or turn.requested_model
    if choice.kind == "app-server" and not (choice.by_rule or _is_codex_model(backend, name)):
        raise ModelNotFound(turn.requested_model, backend.models(), patterns=CODEX_PREFIXES)
    found = backend.resolve(name)
    # One conversation, however many steps it takes.
    session = turn.session or (None if choice.kind in ("mock", "app-server") else new_session())
    turn = replace(turn, model=found.effective, provider=found.provider, session=session)
    return replace(turn, effort=turn.effort or found.effort, backend=backend.name)


def _is_codex_model(backend: Backend, name: str) -> bool:
    """Whether `serve` would send a name to Codex that no other rule routes."""
    return backend.takes.any_model or backend.knows(name) or is_codex_name(name)


async def _wait_for(backend: Backend) -> None:
    """Wait until it is ready. A Codex that dies at once is tried again: another one may have been in its way."""
    for pause in PAUSES:
        try:
            return await backend.wait_until_known()
        except NotReady as error:
            if error.code != "handshake_failed":
                raise
            await trio.sleep(pause)
    return await backend.wait_until_known()


def bridge_key(url: str, given: str | None, settings: Settings) -> str:
    """The key of the bridge at --url. Raises UsageError if none is configured."""
    key = find_bridge_key(url, given, settings)
    if key is None:
        raise UsageError(NO_KEY)
    return key


def find_bridge_key(url: str, given: str | None, settings: Settings) -> str | None:
    """The key of the bridge at --url. The key of this machine is sent to bridges on this machine only."""
    from bridge.settings import api_key_file

    if given is not None or settings.api_keys:
        return given if given is not None else settings.api_keys[0]
    if leads_here(url):
        with suppress(OSError, UnicodeDecodeError):
            return api_key_file().read_text(encoding="ascii").strip()
    return None


class ExecTap:
    """What --trace, --log-requests and --log-events see of a Codex app-server.

    Each of its lines is traced; each call of a turn, and each output of a tool, counts as a request. `log` sees all.
    """

    wants_lines = True

    def __init__(self, output: Output) -> None:
        from bridge.appserver.dialect import BEGINS, PARTS, PROMPTS, TOOL_CALL

        self._output = output
        log = self._log = output.recorder
        self._shown = {("rpc_request", method) for method in PARTS | PROMPTS | BEGINS.keys()}
        self._shown.add(("server_reply", TOOL_CALL))
        self.begin_read = log.begin_read if log else _nothing
        self.end_read = log.end_read if log else _nothing
        self.claim = log.claim if log else _nothing
        self.forget = log.forget if log else _nothing
        self.lifecycle = log.lifecycle if log else _nothing

    def connect(self) -> ExecTap:
        return self

    def read(self, data: bytes, *, is_first: bool) -> None:
        """Its lines follow."""

    def deltas(self, lines: list[bytes], texts: list[str], owners: list[Owner]) -> None:
        for line in lines:
            self._output.trace(line)
        if self._log is not None:
            self._log.deltas(lines, texts, owners)

    def rpc(self, direction: str, kind: str, line: bytes, **about: Any) -> None:
        if direction == "in":
            self._output.trace(line)
        elif (kind, about.get("method")) in self._shown:
            self._output.request(line)
        if self._log is not None:
            self._log.rpc(direction, kind, line, **about)


def _nothing(*_: Any) -> None:
    pass
