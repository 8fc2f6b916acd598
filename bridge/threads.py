"""Blocking work in worker threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import trio

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

_NO_THREAD = "can't start new thread"


async def in_thread(
    function: Callable[[*Arguments], Result], *args: *Arguments, abandon_on_cancel: bool = False
) -> Result:
    """Run a blocking function in a worker thread. `abandon_on_cancel` allows cancellation; the thread then runs on.

    When the system refuses a new thread (the process limit is reached), the function runs in the event loop and every
    task waits: that is better than losing its work, or the program.
    """
    try:
        return await trio.to_thread.run_sync(function, *args, abandon_on_cancel=abandon_on_cancel)
    except RuntimeError as error:
        if str(error) != _NO_THREAD:
            raise
    return function(*args)
