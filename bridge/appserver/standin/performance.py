"""A thread that is being played, and a scene of it: how far it is, who waits for what, when things are due."""

from __future__ import annotations

import collections
import math
from typing import Any

import trio

from bridge.appserver.standin.matching import Place, Trail
from bridge.appserver.standin.naming import Names, Naming
from bridge.appserver.standin.tape import STOPS, Dialect, Message, Scene, Step


class Thread:
    """A thread of this process, and what its player has to know. Whatever changes is told by `news`."""

    def __init__(self, names: Names, key: str, dialect: Dialect, trail: Trail) -> None:
        self.id = key
        self.dialect: Dialect = dialect
        self.trail = trail
        self.own: int | None = None
        """The tape that was played last."""
        self.asked = False
        """Whether it was asked anything yet."""
        self.naming = Naming(names, key)
        self.scenes: collections.deque[tuple[Place, Any]] = collections.deque()
        """What is to be played next, and the ids of the calls that asked for it."""
        self.running = False
        self.turn: Message = {}
        """The turn as it was last told."""
        self.stops: collections.deque[Any] = collections.deque()
        """Ids of the calls that interrupt the running turn."""
        self.stopping = False
        self.waits_for: str | None = None
        """The method that the recorded client called next, when the player has come to it."""
        self.called: collections.deque[Any] = collections.deque()
        """Ids of calls of that method."""
        self.open: set[Any] = set()
        """Recorded ids of the child's requests that wait for their answer."""
        self.answers: dict[Any, Message] = {}
        self.served: collections.Counter[str] = collections.Counter()
        self._news = trio.Event()

    def tell(self) -> None:
        """Let the player look again."""
        self._news.set()

    async def news(self, deadline: float = math.inf) -> None:
        """Wait until something has changed."""
        with trio.move_on_at(deadline):
            await self._news.wait()
        self._news = trio.Event()


class Performance:
    """A scene that is being played in a thread: how far it is, who is to be answered, and when things are due."""

    def __init__(self, place: Place, scene: Scene, asker: Any, speed: float, *, answered: bool = False) -> None:
        self.place = place
        self.scene = scene
        self.index = 0
        self.askers: dict[int, Any] = {} if answered else {0: asker}
        """Calls that are still to be answered, by their number in the scene."""
        self.stopped: Any = None
        """The id of the call that has interrupted it."""
        self._speed = speed
        self._from = trio.current_time()
        self._at = 0.0

    @property
    def step(self) -> Step | None:
        return self.scene.steps[self.index] if self.index < len(self.scene.steps) else None

    def due(self, step: Step) -> float:
        """When a step is to be taken; now, where no time is kept."""
        return self._from + (step.at - self._at) / self._speed if self._speed else 0.0

    def resume(self, at: float) -> None:
        """The client has done what it did then: from here the clock goes on."""
        self._from, self._at = trio.current_time(), at
        self.index += 1

    def next_stop(self) -> int | None:
        """Where the recorded client has interrupted it, from here on."""
        steps = self.scene.steps
        for index in range(self.index, len(steps)):
            if steps[index].kind == "call" and steps[index].method in STOPS:
                return index
        return None

    def take_group(self) -> list[Step]:
        """The steps that the child said at once, from here on."""
        steps, start = self.scene.steps, self.index
        at = steps[start].at
        while self.index < len(steps) and steps[self.index].at == at:
            if steps[self.index].kind not in ("notification", "reply", "ask"):
                break
            self.index += 1
        return list(steps[start : self.index])
