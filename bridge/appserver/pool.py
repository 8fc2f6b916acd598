"""Several supervised children behind one door; a turn goes to the least busy one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import trio

from bridge.appserver.child import Child
from bridge.appserver.supervisor import Supervisor
from bridge.errors import NotReady

FAVOUR = 4
"""How many more turns a child may have and still take a conversation that it may know."""


class Pool:
    """`--workers` supervisors. With one, which is the default, it adds nothing."""

    def __init__(self, supervisors: Sequence[Supervisor]) -> None:
        self.supervisors = tuple(supervisors)

    async def run(self) -> None:
        """Run all supervisors until cancelled."""
        first, *others = self.supervisors
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.run)
            if others:
                # One after the other: on a fresh CODEX_HOME two Codexes trip over each other's first steps.
                with suppress(NotReady):
                    await first.acquire()
            for supervisor in others:
                nursery.start_soon(supervisor.run)

    async def acquire(self, conversation: int = 0) -> Child:
        """The child that takes a conversation's turns, or the least busy one where that has much more to do.

        Where none is ready, the first one to become so. Raises NotReady.
        """
        ready = [supervisor.child for supervisor in self.supervisors if supervisor.child is not None]
        if ready:
            usual, idlest = ready[conversation % len(ready)], min(ready, key=lambda child: child.turns)
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
        raise refusals[0] if refusals else NotReady("The Codex app-server has just ended.", retry_after=1)

    @property
    def child(self) -> Child | None:
        """Any ready child, for what is the same in all of them (models, version)."""
        return next((supervisor.child for supervisor in self.supervisors if supervisor.child), None)

    @property
    def config_fault(self) -> str | None:
        """Why the children ignore their config.toml; None where they do not, or where none runs."""
        return self.child.config_fault if self.child is not None else None

    @property
    def turns(self) -> int:
        """Turns running now."""
        return sum(supervisor.child.turns for supervisor in self.supervisors if supervisor.child)

    def status(self) -> tuple[str, str]:
        """(state, reason) of the best of them."""
        best = self._most_hopeful()
        return best.state, best.reason

    async def drain(self) -> None:
        """Wait until no turn runs anywhere."""
        for supervisor in self.supervisors:
            await supervisor.drain()

    def shut_down(self) -> None:
        """Fail what still runs and take nothing more."""
        for supervisor in self.supervisors:
            supervisor.shut_down()

    def _most_hopeful(self) -> Supervisor:
        order = ("handshake_complete", "handshake_pending", "worker_not_started", "restarting")
        return min(
            self.supervisors,
            key=lambda supervisor: order.index(supervisor.state) if supervisor.state in order else len(order),
        )
