"""How a run is stopped from outside: the first signal lets it end in order, a third one ends it on the spot."""

from __future__ import annotations

import os
import signal

import trio

from bridge.cli.exec import STOPPING
from bridge.errors import BridgeError

BY_SIGNAL = 128
ENOUGH = 2
"""Signals after which one more ends the program on the spot."""


class Stopped(BridgeError):
    """The run was stopped from outside."""

    code = "interrupted"


class Signals:
    """`listen` is a task beside the run, not within it: a second signal must not kill what the first lets end."""

    def __init__(self) -> None:
        self.heard: int | None = None
        """The first signal."""

    async def listen(
        self, whole: trio.CancelScope, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Cancel `whole` at the first signal. From here on they are not held back any more."""
        with trio.open_signal_receiver(*STOPPING) as signals:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
            task_status.started()
            count = 0
            async for number in signals:
                count += 1
                self.heard = self.heard or number
                whole.cancel()
                if count > ENOUGH:
                    os._exit(BY_SIGNAL + number)
