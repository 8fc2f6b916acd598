"""A login is refreshed once, whoever asks: one at a time in this process, and one among all that use the same lock."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Generic, TypeVar

import trio

from bridge.errors import BridgeError, UpstreamError

Result = TypeVar("Result")

LOCK_SECONDS = 30.0
POLL = 0.05


class _Flight(Generic[Result]):
    """One piece of work under way, and what it came to for all who wait for it."""

    def __init__(self) -> None:
        self.over = trio.Event()
        self.results: list[Result] = []
        self.error: BridgeError | None = None


class Flights(Generic[Result]):
    """Work that is done once for all who ask for the same at the same time."""

    def __init__(self) -> None:
        self._flights: dict[str, _Flight[Result]] = {}

    async def join(self, key: str, work: Callable[[], Awaitable[Result]]) -> Result:
        """What `work` gives, or the same work of somebody else's that is under way. Raises what it raised."""
        while (flight := self._flights.get(key)) is not None:
            await flight.over.wait()
            if flight.results:
                return flight.results[0]
            if flight.error is not None:
                raise flight.error
            # Whoever was at it has been cancelled; it is somebody else's turn.
        flight = self._flights[key] = _Flight()
        try:
            result = await work()
            flight.results.append(result)
        except BridgeError as error:
            flight.error = error
            raise
        finally:
            del self._flights[key]
            flight.over.set()
        return result


@asynccontextmanager
async def locked(path: Path) -> AsyncIterator[None]:
    """Hold the lock that all bridges use for the file `path`. It is freed by the system when we die.

    Raises UpstreamError when it cannot be opened, or is held for too long.
    """
    descriptor = open_lock(path)
    try:
        with trio.move_on_after(LOCK_SECONDS) as patience:
            while not take_lock(descriptor):  # noqa: ASYNC110 — nobody tells when a lock is free
                await trio.sleep(POLL)
        if patience.cancelled_caught:
            raise refresh_trouble("another program has been refreshing it for too long")
        yield
    finally:
        os.close(descriptor)


def take_lock(descriptor: int) -> bool:
    """Whether the lock is ours now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_lock(path: Path) -> int:
    """The lock of a file: one beside it; where none can be made, the file itself. Raises UpstreamError."""
    try:
        path = path.resolve()  # of two links to one file, both
        try:
            beside = path.with_name(f"{path.name}.lock")
            return os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "a loop of links"
        raise UpstreamError(
            f"The login cannot be refreshed: {path.name}.lock, beside it, cannot be opened ({reason}).",
            code="refresh_failed",
        ) from None


def refresh_trouble(what: str) -> UpstreamError:
    """A refresh that failed for a reason that may pass."""
    return UpstreamError(
        f"The login could not be refreshed: {what}. Try again.", code="refresh_failed", severity="transient"
    )
