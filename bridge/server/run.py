"""`serve`: an App behind the HTTP edge, until a signal."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from bridge.app.app import App
from bridge.app.keys import check_bind, load_keys
from bridge.http.listener import Listener
from bridge.http.sockets import load_tls, open_sockets
from bridge.http.wire import Edge
from bridge.ids import new_id
from bridge.page.history import History
from bridge.page.ring import Ring
from bridge.redact import Redactor
from bridge.routing.setup import check_codex, prepare_workdir
from bridge.server.access_log import Observed
from bridge.server.gate import Gate
from bridge.server.live_page import LivePage, serves_page
from bridge.server.process import Stop, keep_what_is_loaded, stop_on_signals, tidy_up
from bridge.server.routes import build_app
from bridge.settings import Settings
from bridge.settings.file import FileConfig
from bridge.store.key_store import open_keys
from bridge.telemetry import resident_bytes
from bridge.urls import is_loopback, password_in

if TYPE_CHECKING:
    from ssl import SSLContext

    from bridge.playback.player import LogPlayer
    from bridge.telemetry.tracing import Tracing

log = logging.getLogger("bridge")

FLUSH = 2.0
"""Seconds that failed streams have to send their last event."""
HURRIED_FLUSH = 0.3


class Server:
    """An App behind the HTTP edge. With `tls` it serves https, with `page` the live page."""

    def __init__(self, app: App, tls: SSLContext | None = None, page: LivePage | None = None) -> None:
        settings = app.settings
        self.app = app
        self._tls = tls
        self._page = page
        self.routes = build_app(app.service, fault=app.fault, started_at=int(time.time()), page=page)
        self._gate = Gate(
            self.routes,
            keys=app.keyring,
            check_host=is_loopback(settings.host) or bool(settings.allowed_hosts),
            allowed_origins=settings.allowed_origins,
            allowed_hosts=settings.allowed_hosts,
            sessions=page.sessions if page is not None else None,
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
        app = self.app
        async with app.sole_use_of_login(), app.running(stop.at_once), trio.open_nursery() as tasks:
            for task in (app.keyring.watch, app.watchdog.run, tidy_up, app.warn_of_stray_aliases):
                tasks.start_soon(task)
            async with trio.open_nursery() as background, trio.open_nursery() as connections:
                app.service.background = background
                listener = self._listener(sockets)
                connections.start_soon(listener.run, connections)
                task_status.started()
                await stop.asked.wait()
                app.draining = True
                with trio.move_on_after(app.settings.drain_delay):
                    # A load balancer that polls /readyz notices the stop before clients are refused.
                    await stop.hurried.wait()
                listener.stop_accepting()
                app.service.background = None
                app.service.stopping.set()
                if self._page is not None:
                    self._page.stop()
                app.service.admission.close()
                await self._drain(stop)
                with trio.move_on_after(HURRIED_FLUSH if stop.hurried.is_set() else FLUSH):
                    await listener.wait_closed()
                listener.abort()
                # Not before: its scope is around the connections too.
                background.cancel_scope.deadline = trio.current_time() + FLUSH
                connections.cancel_scope.cancel()
            tasks.cancel_scope.cancel()

    def _listener(self, sockets: list[socket.socket]) -> Listener:
        app, settings = self.app, self.app.settings
        edge = Edge(
            Observed(self._gate, app.counts, new_id, app.tracing),
            write_timeout=settings.write_timeout,
            max_message=settings.max_body,
            ping_interval=settings.keepalive,
            refused=app.counts.refused,
            tls=self._tls,
        )
        return Listener(edge, sockets, max_connections=settings.max_connections)

    async def _drain(self, stop: Stop) -> None:
        # Turns that have just been answered end in the child within a moment; only others are worth a message.
        with trio.move_on_after(0 if stop.hurried.is_set() else min(0.2, self.app.settings.grace)):
            for runner in self.app.runners:
                await runner.drain()
        turns = sum(runner.turns for runner in self.app.runners)
        if turns and not stop.hurried.is_set():
            log.warning(
                "stopping: %d running turn(s) have %g s to finish; another signal stops them at once",
                turns,
                self.app.settings.grace,
            )
        with trio.move_on_after(self.app.settings.grace) as waiting:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_when, stop.hurried, waiting)
                for runner in self.app.runners:
                    await runner.drain()
                nursery.cancel_scope.cancel()
        for runner in self.app.runners:
            runner.shut_down()


def open_player(settings: Settings, keys: tuple[str, ...]) -> LogPlayer | None:
    """Answers from the recorded log of `--replay`. Raises ConfigError if it cannot be read."""
    if settings.replay is None:
        return None
    from bridge.playback.player import load_player

    return load_player(
        settings.replay,
        on_miss=settings.on_miss,
        speed=settings.speed,
        ignore=settings.ignore,
        redactor=Redactor(keys),
    )


def send_traces(endpoint: str | None) -> Tracing | None:
    """Sends traces to this collector; None without one."""
    if endpoint is None:
        return None
    from bridge.telemetry.tracing import open_tracing  # with all that it needs

    return open_tracing(endpoint)


async def serve(
    settings: Settings, config: FileConfig, announce: Callable[[str], None], stderr_redactor: Redactor | None = None
) -> None:
    """Run the bridge until a signal. `announce` prints the lines for a person; `stderr_redactor` learns the keys.

    Raises LogFailed if it ended because of its event log.
    """
    for probe in open_sockets(settings.host, 0):
        # If the address is not one of this machine, say that first, and not that a key is missing.
        probe.close()
    check_bind(settings)
    if not settings.mock_only and (settings.replay is None or settings.on_miss == "forward"):
        check_codex(settings)
        prepare_workdir(settings.workdir)
    keys, key_file = load_keys(settings)
    if stderr_redactor is not None:
        stderr_redactor.learn(keys)
        if settings.database_url is not None and (password := password_in(settings.database_url)) is not None:
            stderr_redactor.learn((password,))
        if settings.shared_server is not None and settings.shared_server.password is not None:
            stderr_redactor.learn((settings.shared_server.password,))
    tls = load_tls(settings.tls_cert, settings.tls_key)
    sockets = open_sockets(settings.host, settings.port)
    if settings.sandbox_mode == "danger-full-access":
        log.warning("PROXY_SANDBOX_MODE=danger-full-access: Codex may change every file that you may change")
    if settings.max_rss and resident_bytes() is None:
        log.warning("PROXY_MAX_RSS has no effect: this system does not report how much memory is in use")
    if settings.native_tools and not settings.mock_only:
        log.warning(
            "--native-tools: Codex uses its own tools and prompts, and the AGENTS.md, memories, skills, MCP servers, "
            "hooks and notify of CODEX_HOME, for every client's request"
        )
    tracing = send_traces(settings.otlp_endpoint)
    player = open_player(settings, keys)
    history = History()
    ring = Ring(settings.page_memory, history) if serves_page(settings) else None
    app = App(
        settings,
        config,
        keys=keys,
        key_store=open_keys(settings),
        player=player,
        stderr_redactor=stderr_redactor,
        tracing=tracing,
        recent=ring,
    )
    host, port = sockets[0].getsockname()[:2]
    page = None if ring is None else LivePage(app, ring, history, keys, port, secure=tls is not None)
    server = Server(app, tls, page)
    shown = f"[{host}]" if ":" in host else host
    async with stop_on_signals(app.reopen_log) as stop:
        scheme = "http" if tls is None else "https"
        announce(f"listening on {scheme}://{shown}:{port}/v1")
        if key_file is not None:
            from shlex import quote  # for this line alone

            announce(f"api key in {key_file}; to use it:")
            announce(f'  export OPENAI_API_KEY="$(cat {quote(str(key_file))})"')
        if page is not None:
            announce(f"page at {scheme}://{shown}:{port}/#token={page.sessions.new_token()} (once, within ten minutes)")
        if player is not None:
            announce(f"answering from {len(player)} recorded request(s) in {settings.replay}")
        if app.log is not None:
            announce(f"event log in {app.log.writer.shown}")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_what_is_loaded)
            await server.run(sockets, stop)
        if tracing is not None:
            await tracing.close()
    if app.log is not None:
        app.log.check()


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
