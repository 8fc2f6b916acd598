"""The limits of keys over several bridges, counted by a Valkey or Redis server.

Each bridge has a lease there, renewed while it runs. When the server does not answer, the bridge enforces its share of
each limit alone, and asks the server again with its next report only: a request waits for a fault at most once.
"""

from __future__ import annotations

import logging
import secrets
import ssl
from collections import Counter
from typing import Any

import trio

from bridge.errors import ConfigError
from bridge.shared import scripts
from bridge.shared.scripts import LEASE
from bridge.urls import SharedServer

try:
    import coredis
    from coredis.retry import NoRetryPolicy
except ImportError as error:
    raise ConfigError(
        "PROXY_SHARED needs the client of Valkey and Redis. Install it with: pip install 'turnbridge[valkey]'."
    ) from error

log = logging.getLogger("bridge.shared")

REPORTS = 1.5
"""Seconds between two reports. Several may fail before the lease ends."""
LIMIT = 0.25
"""Seconds that a request waits for an answer at most."""
PATIENCE = 2.0
"""Seconds that a report waits for its answer; no request waits for it."""


class ValkeyLimits:
    """Counts requests and turns of keys for all bridges on one server. `run` keeps this bridge's lease."""

    def __init__(self, server: SharedServer) -> None:
        self._server = server
        self._id = secrets.token_hex(8)
        self._client = self._make_client()
        self._held: Counter[str] = Counter()
        """Turns of this bridge, by key."""
        self._changed: set[str] = set()
        """Keys with another number of turns than the server knows of."""
        self._wake = trio.Event()
        self._settled = 0.0
        """When all other bridges have reported again after a fault."""
        self.known = 1
        """How many bridges live, as the server said last."""
        self.failures = 0
        self.fault: str | None = "it has not answered yet"

    @property
    def alone(self) -> int:
        """Among how many bridges a limit is divided that this one enforces alone; 1 while the server counts."""
        return self.known if self.fault is not None or trio.current_time() < self._settled else 1

    async def take_request(self, label: str, per_minute: int, left: float) -> tuple[bool, float] | None:
        """Whether a request may begin, and how many are left; None without the server. `left` is our own count."""
        keys, arguments = [scripts.REQUESTS + label], [str(per_minute), repr(left)]
        answer = await self._ask(scripts.TAKE_REQUEST, keys, arguments)
        return None if answer is None else (answer[0] == 1, float(answer[1]))

    async def take_turns(self, label: str, turns: int, limit: int) -> bool:
        """Count turns of a key unless there are too many over all bridges. True means that `free_turns` is due."""
        self._held[label] += turns
        keys = [scripts.BRIDGES, scripts.TURNS + label]
        arguments = [self._id, str(self._held[label]), str(limit), _milliseconds(LEASE)]
        try:
            taken: bool = await self._ask(scripts.TAKE_TURNS, keys, arguments) != 0
        except BaseException:
            self.free_turns(label, turns)
            raise
        if not taken:
            self._held[label] -= turns
        return taken

    def hold_turns(self, label: str, turns: int) -> None:
        """Count turns of a key in any case: they take the place of others. The server hears of it a moment later."""
        self.free_turns(label, -turns)

    def free_turns(self, label: str, turns: int) -> None:
        """Turns of a key have ended. The server hears of it a moment later."""
        self._held[label] -= turns
        self._changed.add(label)
        self._wake.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the lease until cancelled, then give it up. Started when the server has answered, or has failed to."""
        try:
            async with self._client:
                await self._renew()
                task_status.started()
                await self._report_until_cancelled()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * LIMIT):
                await self._leave()

    async def _report_until_cancelled(self) -> None:
        renewed = trio.current_time()
        while True:
            with trio.CancelScope(deadline=renewed + REPORTS):
                await self._wake.wait()
            self._wake = trio.Event()
            if trio.current_time() >= renewed + REPORTS:
                renewed = trio.current_time()
                await self._renew()
            elif self.fault is None:
                labels, self._changed = sorted(self._changed), set()
                await self._ask(scripts.REPORT, *self._turns_of(labels, LEASE))

    async def _leave(self) -> None:
        """End the lease at once, and not after its time."""
        if self.fault is not None:
            return
        labels = sorted({*self._held, *self._changed})
        self._held.clear()
        self.fault = "the bridge stops"
        try:
            async with self._make_client() as client:  # cancelling `run` has closed the other one
                await client.eval(scripts.REPORT, *self._turns_of(labels, 0))
        except Exception as error:
            log.debug("PROXY_SHARED: the lease ends by itself (%s)", type(error).__name__)

    def _make_client(self) -> coredis.Redis[bytes]:
        server = self._server
        return coredis.Redis(
            server.host,
            server.port,
            server.database,
            username=server.user,
            password=server.password,
            ssl_context=ssl.create_default_context() if server.is_encrypted else None,
            ssl=server.is_encrypted,
            connect_timeout=PATIENCE,
            client_name="turnbridge",
            max_connections=4,
            retry_policy=NoRetryPolicy(),  # a call that is repeated could count twice
        )

    async def _renew(self) -> None:
        """Report every key in use. This is what finds out that the server is back."""
        labels = sorted({*self._held, *self._changed})
        self._changed = set()
        try:
            with trio.fail_after(PATIENCE):
                live: Any = await self._client.eval(scripts.REPORT, *self._turns_of(labels, LEASE))
        except Exception as error:  # errors of the transport come through the client as they are
            self._changed.update(labels)
            self._note_fault(error)
            return
        if self.fault is not None:
            self._recover()
        # A server that was restarted hears of the other bridges within one lease.
        self.known = max(live, self.known) if trio.current_time() < self._settled else live
        for label in [each for each in labels if not self._held[each]]:
            del self._held[label]

    def _turns_of(self, labels: list[str], lease: float) -> tuple[list[Any], list[Any]]:
        keys = [scripts.BRIDGES, *(scripts.TURNS + label for label in labels)]
        return keys, [self._id, _milliseconds(lease), *(str(self._held[label]) for label in labels)]

    async def _ask(self, script: str, keys: list[Any], arguments: list[Any]) -> Any:
        """The answer of a script; None without the server."""
        if self.fault is not None:
            return None
        try:
            with trio.fail_after(LIMIT):
                return await self._client.eval(script, keys, arguments)
        except Exception as error:  # errors of the transport come through the client as they are
            self._note_fault(error)
            return None

    def _note_fault(self, error: Exception) -> None:
        self.failures += 1
        first, self.fault = self.fault, type(error).__name__
        if first is None or self.failures == 1:
            log.warning(
                "The server of PROXY_SHARED at %s:%d does not answer (%s). Until it does, this bridge enforces its "
                "share of each key's limits alone: one of %d.",
                self._server.host,
                self._server.port,
                self.fault,
                self.known,
            )

    def _recover(self) -> None:
        if self.failures:
            log.warning("The server of PROXY_SHARED answers again: limits of keys are shared.")
            self._settled = trio.current_time() + LEASE
        self.fault = None


def _milliseconds(seconds: float) -> str:
    return str(round(seconds * 1000))
