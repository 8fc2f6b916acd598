"""The bridge without HTTP: backends, router, store and event log, built from settings and run together.

`serve` puts the HTTP edge in front of an `App`; `cap run`, `lab`, `models` and `record` run one in their own process.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import trio

from bridge.app.admission import Admission
from bridge.app.budgets import Budgets
from bridge.app.fallback import Fallbacks
from bridge.app.keys import Keyring
from bridge.app.metrics import Metrics, Sources
from bridge.app.protocol_exchange import served_name
from bridge.app.recorders import Sink, joined
from bridge.app.service import Recordings, Service
from bridge.appserver.backend import AppServerBackend
from bridge.appserver.codex_home import claim_home, read_codex_home
from bridge.appserver.launch import Launcher, StandinLauncher
from bridge.appserver.supervisor import Pool, Supervisor
from bridge.core.models import Target
from bridge.errors import BridgeError, ConfigError
from bridge.ids import new_id
from bridge.protocols.cap import cap_options
from bridge.protocols.client import ClientProtocol
from bridge.protocols.registry import PROTOCOLS
from bridge.redact import Redactor
from bridge.routing.router import Router, Served, ToolModes
from bridge.routing.setup import (
    Plan,
    app_server_backend,
    app_server_name,
    check_codex,
    codex_launcher,
    configured_models,
    plan_backends,
    prepare_workdir,
    read_aliases,
    read_budgets,
    read_prices,
    read_rules,
    supervisor,
)
from bridge.settings import Settings, store_file
from bridge.settings.file import FileConfig
from bridge.store.base import Store
from bridge.store.key_store import KeyStore
from bridge.store.opening import open_store
from bridge.telemetry import MEMORY_PRESSURE, Counts, MemoryLimit, ReadBytes, Watchdog, resident_bytes

if TYPE_CHECKING:
    from bridge.log.event_log import EventLog
    from bridge.shared.limits import ValkeyLimits
    from bridge.telemetry.tracing import Tracing

log = logging.getLogger("bridge")


class Runner(Protocol):
    """Runs the turns of a backend: children, or connections to a provider."""

    @property
    def turns(self) -> int:
        """Turns running now."""

    async def run(self) -> None:
        """Run until cancelled."""

    async def drain(self) -> None:
        """Wait until no turn runs."""

    def shut_down(self) -> None:
        """Fail the turns that still run, and accept no more."""


class App:
    """Everything that answers requests, from settings that have been checked.

    HTTP clients need one of `keys`, or a key in the `key_store`; a program that holds the App needs none. `player`
    answers from recordings, `recent` records beside the event log. `stderr_redactor` is the one whose count of
    redactions is a metric.
    """

    def __init__(
        self,
        settings: Settings,
        config: FileConfig | None = None,
        *,
        keys: tuple[str, ...] = (),
        key_store: KeyStore | None = None,
        player: Recordings | None = None,
        stderr_redactor: Redactor | None = None,
        tracing: Tracing | None = None,
        memory: ReadBytes = resident_bytes,
        recent: Sink | None = None,
    ) -> None:
        config = config or FileConfig()
        self.settings = settings
        self.keyring = Keyring(keys, key_store)
        self.player = player
        self.tracing = tracing
        self.log = open_log(settings, keys)
        self.counts = Counts()
        self.watchdog = Watchdog()
        self.draining = False
        self.runners: list[Runner] = []
        self.runners_by_backend: dict[str, Runner] = {}
        """Those of the backends, by name."""
        self._login: Path | None = None
        """The CODEX_HOME whose login the children use."""
        sinks = (self.log.recorder if self.log is not None else None, recent)
        self._recorder = joined([sink for sink in sinks if sink is not None])
        self._fallbacks = Fallbacks(config.routing.fallback)
        self._memory = MemoryLimit(settings.max_rss, memory)
        self.shared = open_shared(settings) if key_store is not None else None
        admission = Admission(
            self.keyring if keys or key_store is not None else None,
            max_turns=settings.max_turns,
            max_queue=settings.max_queue,
            patience=settings.queue_timeout,
            shared=self.shared,
        )
        self.router = self._make_router(config)
        self.store = make_store(settings)
        prices = read_prices(config)
        self.budgets = Budgets(self.keyring, self.store, prices, read_budgets(config))
        self.service = Service(
            self.router,
            new_id,
            settings.max_body,
            settings.keepalive,
            self.store,
            hold=settings.status_hold,
            keeps_responses=settings.store != "off",
            shared_for=0 if settings.database_url is None else settings.turn_timeout,
            stream_default=settings.stream_default,
            lists_aliases=settings.list_models == "all",
            tool_modes=ToolModes(config.tool_modes.models, config.tool_modes.keys),
            policy=settings.unsupported,
            reasoning=settings.reasoning,
            recorder=self._recorder,
            prices=prices,
            budgets=self.budgets,
            fallbacks=self._fallbacks,
            player=player,
            admission=admission,
            cap=cap_options(settings),
            counts=self.counts,
            memory=self._memory,
            metrics=self._metrics(stderr_redactor, admission),
            tracing=tracing,
        )

    @asynccontextmanager
    async def running(self, log_failed: Callable[[], None] | None = None) -> AsyncIterator[None]:
        """Run log, store and children while the block runs.

        `log_failed` is called if the event log fails and PROXY_LOG_ON_ERROR=stop; by default the block is cancelled.
        `EventLog.check` then raises the reason.
        """
        async with trio.open_nursery() as outer:
            if self.log is not None:
                await outer.start(self.log.run, log_failed or outer.cancel_scope.cancel)
            await outer.start(self.store.run)
            if self.shared is not None:
                await outer.start(self.shared.run)
            async with trio.open_nursery() as children:
                for runner in self.runners:
                    children.start_soon(runner.run)
                # Until they run, they take no turns. trio runs the tasks of one pass in any order, so the first pass
                # may reach this task before them; the second comes after all of them.
                await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()
                yield
                children.cancel_scope.cancel()
            outer.cancel_scope.cancel()

    @asynccontextmanager
    async def sole_use_of_login(self) -> AsyncIterator[None]:
        """Mark this login as in use, and warn if another bridge already uses it.

        Both continue: with an API key they do not conflict.
        """
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

    async def warn_of_stray_aliases(self) -> None:
        """When the models are known, warn about aliases of others, and report names that the default model answers."""
        if self.settings.mock_only:
            return
        for protocol in PROTOCOLS.values():
            for beginning in protocol.own_models:
                await self._report_stand_in(protocol, beginning)
        chains = self._fallbacks.chains
        if not self.router.has_aliases and not chains:
            return
        # Only now: this asks every provider that can list its models.
        await self.router.wait_until_known(self.settings.rpc_timeout)
        for alias, model, why in self.router.stray_aliases():
            log.warning(
                "The alias %r leads to %r. %s Correct it in PROXY_MODEL_ALIASES or [routing.aliases]; "
                "`turnbridge models` lists what there is.",
                alias,
                model,
                why,
            )

        for name in dict.fromkeys(name for chain in chains.values() for name in chain):
            if (wrong := self.router.why_stray(name)) is not None:
                log.warning("The fallback to %r has no effect. %s Correct it in [routing.fallback].", name, wrong)

    async def _report_stand_in(self, protocol: ClientProtocol, beginning: str) -> None:
        with suppress(BridgeError):
            name = await served_name(self.router, f"{beginning}x", protocol, keyed=False)
            if not name.startswith(beginning):
                log.info(
                    "No backend serves the models %s…: on %s, %s answers for them. Choose another one with "
                    "PROXY_MODEL_ALIASES=%s*=MODEL or in [routing.aliases].",
                    beginning,
                    protocol.path,
                    name,
                    beginning,
                )

    def reopen_log(self) -> None:
        """Open the log file again, after logrotate or a similar program has moved it."""
        if self.log is not None:
            self.log.writer.reopen()

    def fault(self) -> str | None:
        """The code of a fault of the bridge itself. `shutdown_initiated` also ends readiness."""
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
        if self.shared is not None and self.shared.fault is not None:
            return "shared_limits_failing"
        if any(isinstance(runner, Pool) and runner.config_fault is not None for runner in self.runners):
            return "codex_config_invalid"
        return None

    def _make_router(self, config: FileConfig) -> Router:
        """All backends: the stand-in, Codex, and the configured providers."""
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
        served = [Served(codex, Target(own, "app-server", configured, providers=codex.providers))]
        missing: dict[str, str] = {}
        for plan in plan_backends(config, os.environ, Path.home()):
            if (reason := plan.disabled_reason) is not None:
                missing[plan.kind] = reason
                if plan.implied:
                    continue
                log.warning("%s It serves only requests with a key of their own (X-Provider-Key).", reason)
            served.append(self._provider(plan))
        rules, aliases = read_rules(config), read_aliases(config, settings)
        return Router(mock, served, default=default, rules=rules, aliases=aliases, missing=missing)

    def _provider(self, plan: Plan) -> Served:
        from bridge.routing.build import build_backend  # its imports are large

        backend, upstream = build_backend(plan, self.settings, self._recorder.upstream)
        if upstream is not None:
            self.runners.append(upstream)
            self.runners_by_backend[plan.name] = upstream
        return Served(backend, plan.target)

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
            home=home,
            configured=configured,
            windows=lambda: launcher.context_windows,
        )

    def _mock_pool(self) -> Pool:
        on_demand = not self.settings.mock_only
        return self._pool([self._supervisor(StandinLauncher(), on_demand=on_demand)])

    def _supervisor(self, launcher: Launcher, *, on_demand: bool = False) -> Supervisor:
        return supervisor(self.settings, launcher, tap=self._recorder, on_demand=on_demand)

    def _pool(self, supervisors: list[Supervisor]) -> Pool:
        pool = Pool(supervisors)
        self.runners.append(pool)
        return pool

    def _metrics(self, stderr_redactor: Redactor | None, admission: Admission) -> Metrics:
        redactors = [stderr_redactor, self.log.redactor if self.log is not None else None]
        return Metrics(
            Sources(
                self.counts,
                self.runners_by_backend,
                lambda: not self.draining and not self._memory.is_exceeded and self.router.default.status()[0],
                self.watchdog,
                self._memory,
                admission,
                self.budgets,
                self._fallbacks.breakers,
                self.log,
                tuple(each for each in redactors if each is not None),
            )
        )

    def _backend(self, name: str, pool: Pool, **options: Any) -> AppServerBackend:
        self.runners_by_backend[name] = pool
        return app_server_backend(
            name,
            pool,
            self.settings,
            max_turns=2 * self.settings.max_turns,  # as many again may be ending
            recorder=self.counts.tool_calls(self._recorder.tool_calls),
            **options,
        )


@asynccontextmanager
async def open_app(settings: Settings, config: FileConfig) -> AsyncIterator[App]:
    """An App that runs while the block does, for programs without an HTTP edge.

    Raises ConfigError, and LogFailed if records were lost and PROXY_LOG_ON_ERROR=stop.
    """
    if not settings.mock_only:
        check_codex(settings)
        prepare_workdir(settings.workdir)
    app = App(settings.model_copy(update={"replay": None}), config)
    async with app.running():
        yield app
    if app.log is not None:
        app.log.check()


def open_log(settings: Settings, keys: tuple[str, ...]) -> EventLog | None:
    """The configured event log, which never contains `keys`. Raises ConfigError if it cannot be written."""
    if settings.log_events is None:
        return None
    from bridge.log.event_log import EventLog, about

    return EventLog(
        settings.log_events,
        Redactor(keys),
        about(settings),
        max_bytes=settings.log_max_bytes,
        max_age=settings.log_max_age,
        keep=settings.log_keep,
        on_error=settings.log_on_error,
    )


def open_shared(settings: Settings) -> ValkeyLimits | None:
    """The limits that several bridges share, if configured. Raises ConfigError without their client."""
    if (server := settings.shared_server) is not None:
        from bridge.shared.limits import ValkeyLimits  # with its client

        return ValkeyLimits(server)
    return None


def make_store(settings: Settings) -> Store:
    """The configured store of responses, conversations and usage."""
    options: dict[str, Any] = {"ttl": settings.store_ttl, "max_bytes": settings.store_max_bytes, "now": time.time}
    where = None if settings.store == "memory" else settings.database_url or store_file()
    try:
        return open_store(where, **options)
    except ConfigError as error:
        if settings.store != "off":
            raise
        # With PROXY_STORE=off only usage is counted: not worth refusing to start.
        log.warning("usage is counted in memory only: %s", error.message)
        return open_store(None, **options)
