"""The whole bridge, put together and run until a signal: children, backends, router, HTTP edge, event log."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import trio

from bridge.appserver.codex_home import read_codex_home
from bridge.appserver.home_claim import claim_home
from bridge.appserver.launch import StandinLauncher
from bridge.appserver.pool import Pool
from bridge.appserver.supervisor import Supervisor
from bridge.backends.app_server import AppServerBackend
from bridge.backends.plan import Plan, app_server_name, make_router, plan_backends
from bridge.backends.router import Router, Served
from bridge.backends.setup import (
    check_codex,
    child_settings,
    codex_launcher,
    configured_models,
    prepare_workdir,
    supervisor,
)
from bridge.backends.tool_modes import ToolModes
from bridge.config import Settings, key_store_file, store_file
from bridge.config_file import FileConfig
from bridge.errors import ConfigError
from bridge.http.connection import Edge
from bridge.http.listener import Listener
from bridge.http.sockets import load_tls, open_sockets
from bridge.ids import new_id
from bridge.redact import Redactor
from bridge.server.admission import Admission
from bridge.server.app import build_app
from bridge.server.cap.options import cap_options
from bridge.server.counts import Counts
from bridge.server.gate import Gate
from bridge.server.keys import Keyring, check_bind, load_keys
from bridge.server.memory import CODE as MEMORY_PRESSURE
from bridge.server.memory import MemoryLimit, ReadBytes, resident_bytes
from bridge.server.metrics import Metrics, Sources
from bridge.server.observed import Observed
from bridge.server.service import Service
from bridge.server.stopping import Stop, stop_on_signals
from bridge.server.tidying import tidy_up
from bridge.server.watchdog import Watchdog
from bridge.store.base import Store
from bridge.store.memory import MemoryStore
from bridge.store.sqlite import SqliteStore
from bridge.urls import is_loopback

if TYPE_CHECKING:
    from ssl import SSLContext

    from bridge.protolog.event_log import EventLog
    from bridge.server.player import LogPlayer
    from bridge.server.tracing import Tracing

log = logging.getLogger("bridge")

FLUSH = 2.0
"""How long failed streams may take to get their last event out."""
HURRIED_FLUSH = 0.3


class Runner(Protocol):
    """What runs for a backend, and takes its turns: children, or connections."""

    @property
    def turns(self) -> int:
        """Turns running now."""

    async def run(self) -> None:
        """Until cancelled."""

    async def drain(self) -> None:
        """Wait until no turn runs."""

    def shut_down(self) -> None:
        """Fail what still runs and take nothing more."""


class Bridge:
    """Everything that runs, from settings that have been checked.

    Clients are let in with one of `keys`, or one in the file `key_store`. Without either nobody comes in over HTTP, and
    whoever has the service itself needs no key.
    """

    def __init__(
        self,
        settings: Settings,
        keys: tuple[str, ...],
        config: FileConfig | None = None,
        key_store: Path | None = None,
        *,
        said: Redactor | None = None,
        tracing: Tracing | None = None,
        memory: ReadBytes = resident_bytes,
        tls: SSLContext | None = None,
    ) -> None:
        """`said` looks at what goes to stderr, and `memory` tells how much is in use; `tls` makes it https."""
        self.settings = settings
        self._tls = tls
        self.keyring = Keyring(keys, key_store)
        self.draining = False
        self.log = open_log(settings, keys)
        self._recorder = self.log.recorder if self.log is not None else None
        self.runners: list[Runner] = []
        self._login: Path | None = None
        """The CODEX_HOME whose login the children use."""
        self._named: dict[str, Runner] = {}
        self._counts = Counts()
        self._tracing = tracing
        self.watchdog = Watchdog()
        self._memory = MemoryLimit(settings.max_rss, memory)
        self._admission = Admission(
            self.keyring if keys or key_store is not None else None,
            max_turns=settings.max_turns,
            max_queue=settings.max_queue,
            patience=settings.queue_timeout,
        )
        self.player = open_player(settings, keys)
        config = config or FileConfig()
        self.router = self._make_router(config)
        self.store = make_store(settings)
        self._service = Service(
            self.router,
            new_id,
            settings.max_body,
            settings.keepalive,
            self.store,
            keeps_responses=settings.store != "off",
            stream_default=settings.stream_default,
            lists_aliases=settings.list_models == "all",
            tool_modes=ToolModes(config.tool_modes.models, config.tool_modes.keys),
            policy=settings.unsupported,
            reasoning=settings.reasoning,
            recorder=self._recorder,
            player=self.player,
            admission=self._admission,
            cap=cap_options(settings),
            counts=self._counts,
            memory=self._memory,
            metrics=self._metrics(said),
            tracing=tracing,
        )
        self.routes = build_app(self._service, fault=self._fault, started_at=int(time.time()))
        self.app = Gate(
            self.routes,
            keys=self.keyring,
            check_host=is_loopback(settings.host) or bool(settings.allowed_hosts),
            allowed_origins=settings.allowed_origins,
            allowed_hosts=settings.allowed_hosts,
        )

    async def run(
        self,
        sockets: list[socket.socket],
        stop: Stop,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until `stop`, then drain: no new connections, the grace period, then a clean failure for the rest.

        It stops by itself when the event log fails and nothing may go unrecorded (see `EventLog.check`).
        """
        async with self._sole_use_of_login(), trio.open_nursery() as outer:
            if self.log is not None:
                await outer.start(self.log.run, stop.at_once)
            await outer.start(self.store.run)
            outer.start_soon(self.keyring.watch)
            outer.start_soon(self.watchdog.run)
            outer.start_soon(tidy_up)
            outer.start_soon(self._check_aliases)
            async with trio.open_nursery() as children:
                for runner in self.runners:
                    children.start_soon(runner.run)
                async with trio.open_nursery() as background, trio.open_nursery() as connections:
                    self._service.background = background
                    edge = Edge(
                        Observed(self.app, self._counts, new_id, self._tracing),
                        write_timeout=self.settings.write_timeout,
                        max_message=self.settings.max_body,
                        ping_interval=self.settings.keepalive,
                        refused=self._counts.refused,
                        tls=self._tls,
                    )
                    listener = Listener(edge, sockets, max_connections=self.settings.max_connections)
                    connections.start_soon(listener.run, connections)
                    task_status.started()
                    await stop.asked.wait()
                    self.draining = True
                    with trio.move_on_after(self.settings.drain_delay):
                        # A balancer that asks /readyz learns of the end before clients are turned away.
                        await stop.hurried.wait()
                    listener.stop_accepting()
                    self._service.background = None
                    self._service.stopping.set()
                    self._service.admission.close()
                    await self._drain(stop)
                    with trio.move_on_after(HURRIED_FLUSH if stop.hurried.is_set() else FLUSH):
                        await listener.wait_closed()
                    listener.abort()
                    # Not before: its scope is around the connections too.
                    background.cancel_scope.deadline = trio.current_time() + FLUSH
                    connections.cancel_scope.cancel()
                children.cancel_scope.cancel()
            outer.cancel_scope.cancel()

    @asynccontextmanager
    async def working(self) -> AsyncIterator[Service]:
        """Everything but the HTTP edge, while the block runs: for who asks in this process."""
        async with trio.open_nursery() as outer:
            if self.log is not None:
                await outer.start(self.log.run)
            await outer.start(self.store.run)
            async with trio.open_nursery() as children:
                for runner in self.runners:
                    children.start_soon(runner.run)
                yield self._service
                children.cancel_scope.cancel()
            outer.cancel_scope.cancel()

    @asynccontextmanager
    async def _sole_use_of_login(self) -> AsyncIterator[None]:
        """While it lasts, another bridge on the same login hears of us, and we of it. Both go on: with an API key, or
        with different models, there is nothing wrong with it."""
        if self._login is None:
            yield
            return
        with claim_home(self._login) as other:
            if other is not None:
                log.warning(
                    "%s uses this CODEX_HOME too: on one ChatGPT login they can race for its one-time refresh token. "
                    "Stop one of them, or give this one a CODEX_HOME with a login of its own.",
                    other,
                )
            yield

    async def _check_aliases(self) -> None:
        """Warn of aliases that lead to no model, once the models are known."""
        if self.settings.mock_only or not self.router.has_aliases:
            return
        await self.router.wait_until_known(self.settings.rpc_timeout)
        for alias, model, why in self.router.stray_aliases():
            log.warning(
                "The alias %r leads to %r. %s Correct it in PROXY_MODEL_ALIASES or [routing.aliases]; "
                "`codex-bridge models` lists what there is.",
                alias,
                model,
                why,
            )

    def reopen_log(self) -> None:
        """SIGHUP: whoever rotates logs has moved the file away."""
        if self.log is not None:
            self.log.writer.reopen()

    def _fault(self) -> str | None:
        """What is wrong with the bridge itself; `shutdown_initiated` also ends readiness."""
        if self.draining:
            return "shutdown_initiated"
        if self._memory.is_exceeded:
            return MEMORY_PRESSURE
        if self.log is not None and self.log.writer.fault is not None:
            return "event_log_failing"
        if self.store.fault is not None:
            return "store_failing"
        if self.keyring.fault is not None:
            return "key_store_failing"
        if any(isinstance(runner, Pool) and runner.config_fault is not None for runner in self.runners):
            return "codex_config_invalid"
        return None

    async def _drain(self, stop: Stop) -> None:
        # What has just been answered is freed in the child within a moment; only the rest is worth a word.
        with trio.move_on_after(0 if stop.hurried.is_set() else min(0.2, self.settings.grace)):
            for runner in self.runners:
                await runner.drain()
        turns = sum(runner.turns for runner in self.runners)
        if turns and not stop.hurried.is_set():
            log.warning(
                "stopping: %d running turn(s) have %g s to finish; another signal stops them at once",
                turns,
                self.settings.grace,
            )
        with trio.move_on_after(self.settings.grace) as waiting:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_when, stop.hurried, waiting)
                for runner in self.runners:
                    await runner.drain()
                nursery.cancel_scope.cancel()
        for runner in self.runners:
            runner.shut_down()

    def _make_router(self, config: FileConfig) -> Router:
        """All backends: the stand-in, Codex, and what is configured beside them."""
        settings = self.settings
        if self.player is not None and not self.player.forwards:
            return self.player.router
        mock = self._backend("mock", self._mock_pool())
        if settings.mock_only:
            return Router(mock, aliases=settings.aliases)
        own = app_server_name(config)
        default = config.routing.default or own
        configured = (*configured_models(settings), *(config.backends[own].models if own in config.backends else ()))
        codex = self._codex_backend(own, configured, on_demand=default != own)
        served = [Served(codex, "app-server", configured, providers=codex.providers)]
        missing: dict[str, str] = {}
        for plan in plan_backends(config, os.environ, Path.home()):
            if plan.off is not None:
                missing[plan.kind] = plan.off
                if plan.implied:
                    continue
                log.warning("%s It serves only requests with a key of their own (X-Provider-Key).", plan.off)
            served.append(self._provider(plan))
        return make_router(mock, served, default=default, config=config, aliases=settings.aliases, missing=missing)

    def _provider(self, plan: Plan) -> Served:
        from bridge.backends.build import build_backend  # what it needs is large

        built = build_backend(plan, self.settings, self._recorder.upstream if self._recorder else None)
        if built.upstream is not None:
            self.runners.append(built.upstream)
            self._named[plan.name] = built.upstream
        return Served(built.backend, plan.kind, tuple(plan.config.models), plan.off)

    def _codex_backend(self, name: str, configured: Sequence[str], *, on_demand: bool) -> AppServerBackend:
        settings = self.settings
        launcher = codex_launcher(settings)
        home = read_codex_home(settings.codex_home_path)
        if home.has_login:
            self._login = home.path
        if settings.workers > 1 and home.has_login:
            log.warning("%d children share one login: they can race for its one-time refresh token", settings.workers)
        supervisors = [self._supervisor(launcher, on_demand=on_demand) for _ in range(settings.workers)]
        return self._backend(
            name,
            self._pool(supervisors),
            configured=configured,
            providers=home.providers,
            any_model=home.any_model,
            windows=lambda: launcher.context_windows,
        )

    def _mock_pool(self) -> Pool:
        on_demand = not self.settings.mock_only
        return self._pool([self._supervisor(StandinLauncher(), on_demand=on_demand)])

    def _supervisor(self, launcher: Any, *, on_demand: bool = False) -> Supervisor:
        return supervisor(self.settings, launcher, tap=self._recorder, on_demand=on_demand)

    def _pool(self, supervisors: list[Supervisor]) -> Pool:
        pool = Pool(supervisors)
        self.runners.append(pool)
        return pool

    def _metrics(self, said: Redactor | None) -> Metrics:
        redactors = [said, self.log.redactor if self.log is not None else None]
        return Metrics(
            Sources(
                self._counts,
                self._named,
                lambda: not self.draining and not self._memory.is_exceeded and self.router.default.status()[0],
                self.watchdog,
                self._memory,
                self._admission,
                self.log,
                tuple(each for each in redactors if each is not None),
            )
        )

    def _backend(self, name: str, pool: Pool, **options: Any) -> AppServerBackend:
        self._named[name] = pool
        return AppServerBackend(
            name,
            pool,
            new_id=new_id,
            settings=child_settings(self.settings),
            max_turns=2 * self.settings.max_turns,  # as many again may be on their way out
            recorder=self._counts.tool_calls(self._recorder.tool_calls if self._recorder else None),
            **options,
        )


def open_player(settings: Settings, keys: tuple[str, ...]) -> LogPlayer | None:
    """Whoever answers from the log that the operator names. Raises ConfigError when it cannot be read."""
    if settings.replay is None:
        return None
    from bridge.server.player import load_player

    return load_player(
        settings.replay,
        on_miss=settings.on_miss,
        speed=settings.speed,
        ignore=settings.ignore,
        redactor=Redactor(keys),
    )


def open_log(settings: Settings, keys: tuple[str, ...]) -> EventLog | None:
    """The event log that the operator wants; `keys` never stand in it. Raises ConfigError when it cannot be written."""
    if settings.log_events is None:
        return None
    from bridge.protolog.event_log import EventLog, about

    return EventLog(
        settings.log_events,
        Redactor(keys),
        about(settings),
        max_bytes=settings.log_max_bytes,
        max_age=settings.log_max_age,
        keep=settings.log_keep,
        on_error=settings.log_on_error,
    )


def make_store(settings: Settings) -> Store:
    """Where responses, conversations and usage are kept."""
    options: dict[str, Any] = {"ttl": settings.store_ttl, "max_bytes": settings.store_max_bytes, "now": time.time}
    if settings.store == "memory":
        return MemoryStore(**options)
    try:
        return SqliteStore(store_file(), **options)
    except ConfigError as error:
        if settings.store == "sqlite":
            raise
        # Without stored responses usage is still counted, but it is not worth a refusal.
        log.warning("usage is counted in memory alone: %s", error.message)
        return MemoryStore(**options)


def send_traces(endpoint: str | None) -> Tracing | None:
    """What makes traces for the collector that the operator names."""
    if endpoint is None:
        return None
    from bridge.server.tracing import open_tracing  # with all that it needs

    return open_tracing(endpoint)


async def serve(
    settings: Settings, config: FileConfig, announce: Callable[[str], None], said: Redactor | None = None
) -> None:
    """Run the bridge until a signal. `announce` gets the lines that a person sees at start, `said` learns the keys.

    Raises LogFailed when it ended because of its event log.
    """
    for probe in open_sockets(settings.host, 0):
        # An address that is not this machine's needs another address, not a key.
        probe.close()
    check_bind(settings)
    if not settings.mock_only and (settings.replay is None or settings.on_miss == "forward"):
        check_codex(settings)
        prepare_workdir(settings.workdir)
    keys, key_file = load_keys(settings)
    if said is not None:
        said.learn(keys)
    tls = load_tls(settings.tls_cert, settings.tls_key)
    sockets = open_sockets(settings.host, settings.port)
    if settings.sandbox_mode == "danger-full-access":
        log.warning("PROXY_SANDBOX_MODE=danger-full-access: Codex may change anything that you may")
    if settings.max_rss and resident_bytes() is None:
        log.warning("PROXY_MAX_RSS has no effect: this system does not tell how much memory is in use")
    if settings.native_tools and not settings.mock_only:
        log.warning(
            "--native-tools: Codex uses its own tools and prompts, and the AGENTS.md, memories, skills, MCP servers, "
            "hooks and notify of CODEX_HOME, for every client's request"
        )
    tracing = send_traces(settings.otlp_endpoint)
    bridge = Bridge(settings, keys, config, key_store_file(), said=said, tracing=tracing, tls=tls)
    host, port = sockets[0].getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    async with stop_on_signals(bridge.reopen_log) as stop:
        scheme = "http" if tls is None else "https"
        announce(f"listening on {scheme}://{shown}:{port}/v1")
        if key_file is not None:
            from shlex import quote  # for this line alone

            announce(f"api key in {key_file}; to use it:")
            announce(f'  export OPENAI_API_KEY="$(cat {quote(str(key_file))})"')
        if bridge.player is not None:
            announce(f"answering from {len(bridge.player)} recorded request(s) in {settings.replay}")
        if bridge.log is not None:
            announce(f"event log in {bridge.log.writer.shown}")
        await bridge.run(sockets, stop)
        if tracing is not None:
            await tracing.close()
    if bridge.log is not None:
        bridge.log.check()


async def list_models(settings: Settings, config: FileConfig) -> dict[str, Any]:
    """What `serve` would serve: models with their backends, patterns, and what is not there, and why."""
    if not settings.mock_only:
        check_codex(settings)
        prepare_workdir(settings.workdir)
    bridge = Bridge(settings.model_copy(update={"log_events": None, "store": "memory", "replay": None}), (), config)
    async with trio.open_nursery() as nursery:
        for runner in bridge.runners:
            nursery.start_soon(runner.run)
        await trio.lowlevel.checkpoint()
        await bridge.router.wait_until_known(settings.rpc_timeout)
        found = bridge.router.describe()
        nursery.cancel_scope.cancel()
    return found


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
