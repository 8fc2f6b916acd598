"""When recorded things happen again: in their order, and at their distance if that is wanted."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import trio


@dataclass(frozen=True, slots=True)
class Pace:
    """When recorded things happen again: `speed` times as fast as then, or at once (0)."""

    speed: float
    then: float
    """The beginning of the recording, in its own time."""
    now: float
    """The beginning of its playing."""

    async def until(self, moment: float) -> None:
        """Until a moment of the recording."""
        if self.speed > 0:
            await trio.sleep_until(self.now + (moment - self.then) / self.speed)
        else:
            await trio.lowlevel.checkpoint()


class Order:
    """Lets the turns of one request go on in the order in which they did, however their consumer asks for them."""

    def __init__(self) -> None:
        self._next: dict[int, float] = {}
        self._changed = trio.Event()

    def join(self, attempt: int) -> None:
        """This one has begun; nobody goes on before it is known when it does."""
        self._next[attempt] = -inf

    async def wait(self, attempt: int, moment: float) -> None:
        """Until nobody else has anything from before that moment."""
        self._next[attempt] = moment
        self._tell()
        while attempt in self._next and min((moment, index) for index, moment in self._next.items())[1] != attempt:
            await self._changed.wait()
            # Whoever has just gone on may have enough with that: then we are cancelled here.
            await trio.lowlevel.checkpoint()

    def leave(self, attempt: int) -> None:
        """This one has nothing more to say."""
        self._next.pop(attempt, None)
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
