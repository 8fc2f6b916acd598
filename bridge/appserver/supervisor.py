"""Keeps one child alive: start, handshake, restart with back-off and a limit, drain.

A turn never outlives its child; a child outlives its turns. When it dies too often the supervisor goes degraded: it
says why, and tries again after a longer while. It never takes the listener down.
"""

from __future__ import annotations

import collections
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import trio

from bridge.appserver.child import GONE, Child
from bridge.appserver.config_warning import INVALID, ConfigWarning, in_users_words
from bridge.appserver.counts import ChildCounts
from bridge.appserver.launch import Command, Launcher
from bridge.appserver.process import spawn, stop
from bridge.appserver.settings import ChildSettings
from bridge.appserver.stream import Limits
from bridge.appserver.tap import Tap
from bridge.errors import BackendCrashed, BridgeError, NotReady
from bridge.redact import Redactor, harmless

log = logging.getLogger("bridge.supervisor")

STOP_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL. Codex without tools of its own ends within 0.03 s."""
NATIVE_STOP_GRACE = 8.0
"""The same with Codex's own tools. Codex 0.163 then waits for lookups of host names, 5 s where no name server answers.

SIGINT would end it at once, but not its MCP servers and commands: Codex stops these on SIGTERM alone.
"""
EXIT_DRAIN = 0.5
"""How long the output of a process that has ended may still be read."""

State = Literal[
    "worker_not_started",
    "handshake_pending",
    "handshake_complete",
    "handshake_failed",
    "restarting",
    "degraded",
    "shutdown_initiated",
]


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Back-off between starts, and the number of deaths in a period after which it is degraded."""

    first_delay: float = 0.25
    max_delay: float = 30.0
    max_deaths: int = 5
    period: float = 60.0
    degraded_delay: float = 60.0


class Supervisor:
    """Owns one child at a time. `run` is its task; `acquire` waits for a child that can take a turn."""

    def __init__(
        self,
        launcher: Launcher,
        settings: ChildSettings,
        *,
        dialect: Literal["auto", "current", "legacy"] = "auto",
        limits: Limits | None = None,
        policy: RestartPolicy | None = None,
        tap: Tap | None = None,
        on_demand: bool = False,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.state: State = "worker_not_started"
        self.reason = "not started yet"
        self.restarts = 0
        self.counts = ChildCounts()
        self._child: Child | None = None
        self._launcher = launcher
        self._settings = settings
        self._dialect = dialect
        self._limits = limits or Limits()
        self._policy = policy or RestartPolicy()
        self._tap = tap
        self._jitter = jitter
        self._warned: set[ConfigWarning] = set()
        self._deaths: collections.deque[float] = collections.deque(maxlen=self._policy.max_deaths)
        self._changed = trio.Event()
        self._wanted = trio.Event()
        if not on_demand:
            self._wanted.set()

    def __repr__(self) -> str:
        return f"<Supervisor {self._launcher.name} {self.state} {self.child!r}>"

    @property
    def child(self) -> Child | None:
        """The child that can take a turn now."""
        return None if self._child is None or self._child.closed else self._child

    async def acquire(self) -> Child:
        """A child that is ready, waiting for one that is just starting. Raises NotReady with the reason otherwise."""
        self._wanted.set()
        with trio.move_on_after(self._limits.rpc):
            while True:
                if self.child is not None:
                    return self.child
                if self.state in ("handshake_failed", "degraded", "shutdown_initiated"):
                    break
                await self._changed.wait()
        raise NotReady(f"The Codex app-server is not ready: {harmless(self.reason)}", code=self.state, retry_after=2)

    async def run(self) -> None:
        """Start children until cancelled."""
        await self._wanted.wait()
        failures = 0
        while True:
            started = trio.current_time()
            try:
                restart_now = await self._run_once()
            except Exception:
                # A mistake of ours, or of the system's: it costs this child, not the program.
                log.exception("%s child: its supervision failed", self._launcher.name)
                restart_now = False
                self._become("handshake_failed", "the bridge could not start it; its log tells why.")
            if self.state == "shutdown_initiated":
                return
            if restart_now:
                continue
            now = trio.current_time()
            failures = 0 if now - started > self._policy.period else failures + 1
            self._deaths.append(now)
            self.restarts += 1
            delay = self._delay(now, failures)
            log.warning("%s child: %s Next start in %.1f s.", self._launcher.name, _sentence(self.reason), delay)
            if self._tap is not None:
                self._tap.lifecycle("restart", {"reason": self.reason, "delay": round(delay, 3)})
            await trio.sleep(delay)

    async def drain(self) -> None:
        """Wait until no turn runs. The caller bounds it."""
        while self.child is not None and self.child.turns:
            await self.child.idle.wait()

    def shut_down(self) -> None:
        """Take no more turns; fail those that still run."""
        self._become("shutdown_initiated", "the bridge is shutting down")
        child, self._child = self._child, None
        if child is not None:
            child.close(NotReady("The bridge is shutting down.", code="shutdown_initiated", retry_after=5))

    async def _run_once(self) -> bool:
        """One life of a child. True: it was ended on purpose, to be started again at once."""
        self._become("handshake_pending", "starting")
        try:
            command = await self._launcher.command()
            process = await spawn(command.argv, env=command.env, cwd=command.cwd)
        except BridgeError as error:
            self._become("handshake_failed", error.message)
            return False
        child = Child(
            process,
            self._settings,
            dialect=self._dialect,
            limits=self._limits,
            tap=self._tap,
            counts=self.counts,
        )
        if self._tap is not None:
            self._tap.lifecycle("backend_start", {"pid": process.pid, "argv": list(command.argv)})
        restart_now = False
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(child.pump)
                nursery.start_soon(self._watch_exit, child)
                restart_now = await self._shake_hands(child, command)
                if self._child is child:
                    await child.over.wait()
                child.close(BackendCrashed("The Codex app-server was restarted during the request. Try again."))
                nursery.cancel_scope.cancel()
        finally:
            self._child = None
            child.close(BackendCrashed(GONE))
            if self.state == "handshake_complete":
                self._become("restarting", "it did not answer any more" if child.hung else "it has ended")
            grace = NATIVE_STOP_GRACE if self._settings.native_tools else STOP_GRACE
            # One that hangs is not asked twice.
            await stop(process, grace=0 if child.hung else grace)
            if self._tap is not None:
                about: dict[str, Any] = {"code": process.returncode, "stderr": child.stderr_tail()[-4000:]}
                self._tap.lifecycle("backend_exit", about | {"ended_requests": child.ended_requests})
        if self.state == "restarting" and not child.hung:
            self._become("restarting", f"it ended with code {process.returncode}")
        return restart_now

    async def _watch_exit(self, child: Child) -> None:
        """A process may be gone while another one, which it started, still holds its pipe open."""
        await child.process.wait()
        with trio.move_on_after(EXIT_DRAIN):
            await child.over.wait()
        child.close(BackendCrashed(GONE))

    async def _shake_hands(self, child: Child, command: Command) -> bool:
        try:
            info = await child.handshake()
            if await self._launcher.learn(info, command):
                return True
            home = command.env.get("CODEX_HOME", "")
            child.config_warnings = [
                in_users_words(warning, home, is_ours=command.has_own_home) for warning in child.config_warnings
            ]
            if command.config_fault is not None:
                child.config_warnings.append(ConfigWarning(INVALID, command.config_fault))
        except BridgeError as error:
            code = child.process.returncode
            ended = "it ended before it was ready" + (f" (code {code})." if code is not None else ".")
            what = ended if isinstance(error, BackendCrashed) else error.message
            self._become("handshake_failed", what + _last_words(child))
            return False
        self._child = child
        self._become("handshake_complete", "ready")
        for warning in child.config_warnings:
            # Once, and not again for each child that follows.
            if warning not in self._warned:
                self._warned.add(warning)
                log.warning("%s child: Codex warns about its configuration: %s", self._launcher.name, warning)
        log.info("%s child ready: version %s, %s dialect", self._launcher.name, info.version, info.dialect)
        return False

    def _delay(self, now: float, failures: int) -> float:
        policy = self._policy
        recent = [death for death in self._deaths if now - death <= policy.period]
        if len(recent) >= policy.max_deaths:
            self._become("degraded", f"it ended {len(recent)} times within {policy.period:g} s; last: {self.reason}")
            self._deaths.clear()
            return policy.degraded_delay
        doublings = float(2 ** min(max(0, failures - 1), 16))
        return min(policy.max_delay, policy.first_delay * doublings) * (0.75 + self._jitter() / 2)

    def _become(self, state: State, reason: str) -> None:
        if self.state == "shutdown_initiated":
            return
        self.state = state
        self.reason = reason
        self._changed.set()
        self._changed = trio.Event()


def _sentence(text: str) -> str:
    return text if text.endswith(".") else text + "."


def _last_words(child: Child) -> str:
    """The last line of the child's stderr, fit to be shown to a client."""
    lines = child.stderr_tail().strip().splitlines()
    if not lines:
        return ""
    return " It said: " + Redactor().text(lines[-1][:300].encode()).decode("utf-8", "replace")
