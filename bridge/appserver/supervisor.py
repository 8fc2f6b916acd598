"""Keeps one child alive: start, handshake, restart with back-off and a limit, drain.

A turn never outlives its child; a child outlives its turns. When it dies too often the supervisor goes degraded: it
says why, and tries again after a longer while. It never takes the listener down.
"""

from __future__ import annotations

import collections
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, get_args

import trio

from bridge.appserver.child import GONE, Child
from bridge.appserver.failures import INVALID_CONFIG, ConfigWarning
from bridge.appserver.launch import Command, Launcher
from bridge.appserver.process import spawn, stop
from bridge.appserver.thread_cache import conversation_number
from bridge.appserver.turn import ChildSettings, Limits
from bridge.core.items import Item
from bridge.core.observer import Tap
from bridge.counts import ChildCounts
from bridge.errors import BackendCrashed, BridgeError, NotReady
from bridge.redact import Redactor, harmless

log = logging.getLogger("bridge.supervisor")

FAVOUR = 4
"""How many more turns a child may have and still be chosen for a conversation that it may know."""


STOP_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL. Codex without tools of its own ends within 0.03 s."""
NATIVE_STOP_GRACE = 8.0
"""The same with Codex's own tools. Codex 0.163 then waits for lookups of host names, 5 s where no name server answers.

SIGINT would end it at once, but not its MCP servers and commands: Codex stops these on SIGTERM alone.
"""
EXIT_DRAIN = 0.5
"""How long the output of a process that has ended may still be read."""

State = Literal[
    "handshake_complete", "handshake_pending", "worker_not_started", "restarting",
    "handshake_failed", "degraded", "shutdown_initiated",
]  # fmt: skip
"""The state of a child, the most hopeful first."""
_STATES: tuple[State, ...] = get_args(State)
_NOT_SOON = _STATES[4:]
"""States in which waiting for the child is useless."""


class Pool:
    """The supervisors of several children (`--workers`). A turn goes to the child that may know its conversation, or to
    the least busy one."""

    def __init__(self, supervisors: Sequence[Supervisor]) -> None:
        self.supervisors = tuple(supervisors)

    async def run(self) -> None:
        first, *others = self.supervisors
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.run)
            if others:
                # One after the other: on a fresh CODEX_HOME two Codexes get in each other's way.
                with suppress(NotReady):
                    await first.acquire()
            for supervisor in others:
                nursery.start_soon(supervisor.run)

    async def acquire(self, items: Sequence[Item] = ()) -> Child:
        """The child that takes the turns of a conversation with these `items`, or the least busy one where that has
        much more to do.

        Where none is ready, the first one to become so. Raises NotReady.
        """
        ready = self.children
        if len(ready) == 1:
            return ready[0]
        if ready:
            usual, idlest = ready[conversation_number(items) % len(ready)], min(ready, key=lambda child: child.turns)
            return usual if usual.turns <= idlest.turns + FAVOUR else idlest
        found: list[Child] = []
        refusals: list[NotReady] = []

        async def ask(supervisor: Supervisor) -> None:
            try:
                found.append(await supervisor.acquire())
                nursery.cancel_scope.cancel()
            except NotReady as refusal:
                refusals.append(refusal)

        async with trio.open_nursery() as nursery:
            for supervisor in self.supervisors:
                nursery.start_soon(ask, supervisor)
        usable = [child for child in found if not child.closed]
        if usable:
            return usable[0]
        raise refusals[0] if refusals else NotReady("The Codex app-server has just exited.", retry_after=1)

    @property
    def children(self) -> list[Child]:
        """The children that can run a turn now."""
        return [child for supervisor in self.supervisors if (child := supervisor.child) is not None]

    @property
    def child(self) -> Child | None:
        """Any ready child, for data that all share (models, version)."""
        return next(iter(self.children), None)

    @property
    def config_fault(self) -> str | None:
        """Why the children ignore their config.toml; None where they do not, or where none runs."""
        return self.child.config_fault if self.child is not None else None

    @property
    def turns(self) -> int:
        return sum(child.turns for child in self.children)

    def status(self) -> tuple[str, str]:
        """(state, reason) of the best of them."""
        best = min(self.supervisors, key=lambda supervisor: _STATES.index(supervisor.state))
        return best.state, best.reason

    async def drain(self) -> None:
        """Wait until no turn runs anywhere."""
        for supervisor in self.supervisors:
            await supervisor.drain()

    def shut_down(self) -> None:
        for supervisor in self.supervisors:
            supervisor.shut_down()


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Back-off between starts, and the number of deaths in a period after which it is degraded."""

    first_delay: float = 0.25
    max_delay: float = 30.0
    max_deaths: int = 5
    period: float = 60.0
    degraded_delay: float = 60.0


class Supervisor:
    """Owns one child at a time. `run` is its task; `acquire` waits for a child that can run a turn."""

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
        """The child that can run a turn now."""
        return None if self._child is None or self._child.closed else self._child

    async def acquire(self) -> Child:
        """A child that is ready, waiting for one that is just starting. Raises NotReady with the reason otherwise."""
        self._wanted.set()
        with trio.move_on_after(self._limits.rpc):
            while True:
                if self.child is not None:
                    return self.child
                if self.state in _NOT_SOON:
                    break
                await self._changed.wait()
        raise NotReady(f"The Codex app-server is not ready: {harmless(self.reason)}", code=self.state, retry_after=2)

    async def run(self) -> None:
        await self._wanted.wait()
        failures = 0
        while True:
            started = trio.current_time()
            try:
                restart_now = await self._run_once()
            except Exception:
                # A bug of ours or a fault of the system: it ends this child, not the program.
                log.exception("%s child: the supervisor failed", self._launcher.name)
                restart_now = False
                self._become("handshake_failed", "the bridge could not start it; see its log.")
            if self.state == "shutdown_initiated":
                return
            if restart_now:
                continue
            now = trio.current_time()
            failures = 0 if now - started > self._policy.period else failures + 1
            self._deaths.append(now)
            self.restarts += 1
            delay = self._delay(now, failures)
            reason = self.reason.removesuffix(".")
            log.warning("%s child: %s. Next start in %.1f s.", self._launcher.name, reason, delay)
            self._log("restart", {"reason": self.reason, "delay": round(delay, 3)})
            await trio.sleep(delay)

    async def drain(self) -> None:
        """Wait until no turn runs. The caller bounds it."""
        while self.child is not None and self.child.turns:
            await self.child.idle.wait()

    def shut_down(self) -> None:
        """Accept no more turns; fail those that still run."""
        self._become("shutdown_initiated", "the bridge is shutting down")
        child, self._child = self._child, None
        if child is not None:
            child.close(NotReady("The bridge is shutting down.", code="shutdown_initiated", retry_after=5))

    async def _run_once(self) -> bool:
        """Start a child and wait for its end. True: it was ended on purpose, to be started again at once."""
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
            tap=None if self._tap is None else self._tap.connect(),
            counts=self.counts,
        )
        self._log("backend_start", {"pid": process.pid, "argv": list(command.argv)})
        restart_now = False
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(child.pump)
                nursery.start_soon(self._watch_exit, child)
                if command.roots is not None:
                    nursery.start_soon(self._watch_roots, child, command)
                restart_now = await self._shake_hands(child, command)
                if self._child is child:
                    await child.over.wait()
                    restart_now = child.lacks_roots
                child.close(BackendCrashed("The Codex app-server was restarted during the request. Try again."))
                nursery.cancel_scope.cancel()
        finally:
            self._child = None
            child.close(BackendCrashed(GONE))
            if self.state == "handshake_complete":
                self._become("restarting", "it stopped responding" if child.hung else "it has ended")
            grace = NATIVE_STOP_GRACE if self._settings.native_tools else STOP_GRACE
            # A child that hangs gets no time.
            await stop(process, grace=0 if child.hung else grace)
            about: dict[str, Any] = {"code": process.returncode, "stderr": child.stderr.text()[-4000:]}
            self._log("backend_exit", about | {"ended_requests": child.ended_requests})
        if self.state == "restarting" and not child.hung:
            self._become("restarting", f"it ended with code {process.returncode}")
        return restart_now

    async def _watch_exit(self, child: Child) -> None:
        """A process may be gone while another one, which it started, still holds its pipe open."""
        await child.process.wait()
        with trio.move_on_after(EXIT_DRAIN):
            await child.over.wait()
        child.close(BackendCrashed(GONE))

    async def _watch_roots(self, child: Child, command: Command) -> None:
        """End a child that does not trust its provider. It would retry until its turns time out."""
        while True:
            await child.unconnected.wait()
            if await self._launcher.lacks_roots(command):
                child.lacks_roots = True
                child.over.set()
                return
            child.unconnected = trio.Event()

    async def _shake_hands(self, child: Child, command: Command) -> bool:
        try:
            info = await child.handshake()
            if await self._launcher.learn(info, command):
                return True
            home = command.env.get("CODEX_HOME", "")
            child.config_warnings = [
                warning.without_path(home, is_ours=command.has_own_home) for warning in child.config_warnings
            ]
            if command.config_fault is not None:
                child.config_warnings.append(ConfigWarning(INVALID_CONFIG, command.config_fault))
        except BridgeError as error:
            code = child.process.returncode
            ended = "it exited before it was ready" + (f" (code {code})." if code is not None else ".")
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

    def _log(self, kind: str, about: dict[str, Any]) -> None:
        if self._tap is not None:
            self._tap.lifecycle(kind, about)

    def _become(self, state: State, reason: str) -> None:
        if self.state == "shutdown_initiated":
            return
        self.state = state
        self.reason = reason
        self._changed.set()
        self._changed = trio.Event()


def _last_words(child: Child) -> str:
    """The last line of the child's stderr, fit to be shown to a client."""
    lines = child.stderr.text().strip().splitlines()
    if not lines:
        return ""
    return " Its last output: " + Redactor().text(lines[-1][:300].encode()).decode("utf-8", "replace")
