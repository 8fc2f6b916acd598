"""Blocking work beside the event loop."""

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
    """What a blocking function gives, run in a worker thread. Not to be cancelled, unless it may be left to itself.

    Where the system gives us none (a limit of processes is reached) it is run here, and everybody waits: that is
    better than to lose what it would do, or the program.
    """
    try:
        return await trio.to_thread.run_sync(function, *args, abandon_on_cancel=abandon_on_cancel)
    except RuntimeError as error:
        if str(error) != _NO_THREAD:
            raise
    return function(*args)
