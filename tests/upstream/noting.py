"""What a backend sends and gets, and what its turns come to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from bridge.core.backend import EventStream
from bridge.core.collect import Result
from bridge.core.turn import Turn
from bridge.errors import BridgeError
from bridge.upstream.backend import UpstreamBackend


def noted(sent: list[bytes], traced: list[bytes]) -> Callable[[str, str, bytes], None]:
    """A backend's `record` that appends to these lists."""
    return lambda req_id, direction, data: (sent if direction == "out" else traced).append(data)


async def collect(stream: EventStream) -> Result:
    """Read a turn to its end, then close it."""
    result = Result()
    while result.end is None:
        result.add(await stream.next())
    stream.close()
    return result


def succeeded(result: Result) -> Result:
    """The result of a turn that must succeed."""
    assert result.end is not None
    assert result.end.outcome == "completed", result.end
    return result


def failure_of(result: Result) -> BridgeError:
    """The error of a turn that must fail."""
    assert result.end is not None
    assert result.end.outcome == "failed", result
    assert result.end.error is not None
    return result.end.error


class Asking(ABC):
    """A rig whose backend is asked for turns."""

    backend: UpstreamBackend

    @abstractmethod
    def greeting(self) -> Turn:
        """The turn of a test that needs no other."""

    async def start(self, turn: Turn | None = None) -> EventStream:
        return await self.backend.start(turn or self.greeting(), "req_1")

    async def ask(self, turn: Turn | None = None) -> Result:
        """One turn to its end."""
        return await collect(await self.start(turn))

    async def answered(self, turn: Turn | None = None) -> Result:
        """One turn that must succeed."""
        return succeeded(await self.ask(turn))
