"""Room for turns: for each backend, and for each key that has limits of its own.

Who finds none waits for a while in a queue that has an end, too. Places are given in the order of asking, but nobody
waits behind a key that has used up its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import trio

from bridge.auth.key_store import ClientKey
from bridge.errors import BridgeError, InvalidRequest, KeyLimitReached, NotReady, Overloaded, Unauthorized
from bridge.server.keys import Keyring

RETRY_AFTER = 2.0
"""Seconds after which a client that found no room may ask again."""

Cut = Callable[[BridgeError], None]


@dataclass(eq=False, slots=True)
class Place:
    """Room for a request's turns, from the moment it is given until `free`."""

    admission: Admission
    label: str
    backend: str
    turns: int
    cut: Cut
    """Ends the request, for the reason given."""
    decided: trio.Event | None = None
    """While it is waited for: that it is given, or refused."""
    refusal: BridgeError | None = None

    def free(self) -> None:
        """Let somebody else have it. May be called again."""
        self.admission._free(self)

    def decide(self) -> None:
        """Tell who waits for it."""
        if self.decided is not None:
            self.decided.set()


class Admission:
    """Who may begin a turn now. Without a keyring no key has limits; without `max_turns` no backend has."""

    def __init__(
        self,
        keyring: Keyring | None = None,
        *,
        max_turns: float = math.inf,
        max_queue: int = 0,
        patience: float = 0,
    ) -> None:
        self._keyring = keyring
        self._max_turns = max_turns
        self._max_queue = max_queue
        self._patience = patience
        self._given: dict[Place, None] = {}
        self._of_keys: Counter[str] = Counter()
        self._of_backends: Counter[str] = Counter()
        """How many turns have their places."""
        self._waiting: dict[Place, None] = {}
        self._buckets: dict[str, tuple[float, float]] = {}
        """Requests that a key may still begin, and when that was so."""
        self._closed = False
        if keyring is not None:
            keyring.on_gone.append(self._expel)

    @property
    def running(self) -> int:
        """Turns that have their places."""
        return self._of_backends.total()

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    def key(self, label: str) -> ClientKey | None:
        """What is known of a client's key; None when there is nothing to know, or it is not let in any more."""
        return self._keyring.get(label) if self._keyring is not None else None

    async def enter(self, label: str, backend: str, turns: int, cut: Cut) -> Place:
        """Room for `turns` turns of a key at a backend, which must be freed. `cut` is called if the key is revoked.

        Raises Unauthorized for a key that is not let in any more, KeyLimitReached where the key's own limits stand
        against it, Overloaded where the bridge's do, NotReady when the bridge stops.
        """
        await self.count(label, turns)
        place = Place(self, label, backend, turns, cut)
        if self._obstacle(place) is not None:
            await self._wait(place)
        else:
            self._give(place)
        return place

    def close(self) -> None:
        """The bridge stops: nobody is let in, and nobody waits any more."""
        self._closed = True
        for place in list(self._waiting):
            self._refuse(place, _stopping())

    async def check_key(self, label: str) -> None:
        """Raise Unauthorized for a key that was let in once, and is not any more."""
        if self._keyring is not None:
            await self._keyring.refresh()
            if self._keyring.get(label) is None:
                raise _gone()

    async def count(self, label: str, turns: int = 0) -> None:
        """A request of a key begins, for so many turns. Raises what stands against it, as `enter` does."""
        if self._closed:
            raise _stopping()
        if turns > self._max_turns:
            raise Overloaded(f"{turns} answers are more than run at once here ({self._max_turns}); ask for fewer.")
        await self.check_key(label)
        key = self.key(label)
        if key is None:
            return
        if key.max_turns is not None and turns > key.max_turns:
            raise InvalidRequest(f"This key may have {key.max_turns} answer(s) at once; ask for fewer.", param="n")
        if key.max_requests is not None:
            self._spend(label, key.max_requests)

    def _spend(self, label: str, a_minute: int) -> None:
        """Count a request. A key that was idle for a minute may begin them all at once, and then one by one."""
        now = trio.current_time()
        left, at = self._buckets.get(label, (a_minute, now))
        left = min(a_minute, left + (now - at) * a_minute / 60)
        if left < 1:
            self._buckets[label] = left, now
            raise KeyLimitReached(
                f"This key may begin {a_minute} request(s) a minute, and has. Wait as long as 'retry-after' says.",
                retry_after=(1 - left) * 60 / a_minute,
            )
        self._buckets[label] = left - 1, now

    def _obstacle(self, place: Place) -> BridgeError | None:
        """What stands against a place now; None when it can be given."""
        own = self._own_limit(place)
        if own is not None:
            return KeyLimitReached(
                f"This key may have {own} turn(s) at once, and has. Wait for one to end.", retry_after=RETRY_AFTER
            )
        running = self._of_backends[place.backend]
        if running + place.turns > self._max_turns or self._is_behind(place):
            return Overloaded(
                f"{running} turn(s) are running already (PROXY_MAX_TURNS); try again in a moment.",
                retry_after=RETRY_AFTER,
            )
        return None

    def _own_limit(self, place: Place) -> int | None:
        """The limit of its key that stands against a place; None where none does."""
        key = self.key(place.label)
        own = key.max_turns if key is not None else None
        return own if own is not None and self._of_keys[place.label] + place.turns > own else None

    def _is_behind(self, place: Place) -> bool:
        """Whether somebody has asked for the same before, and waits for nothing else."""
        for each in self._waiting:
            if each is place:
                break
            if each.backend == place.backend and self._own_limit(each) is None:
                return True
        return False

    async def _wait(self, place: Place) -> None:
        obstacle = self._obstacle(place)
        assert obstacle is not None
        own = sum(each.label == place.label for each in self._waiting)
        # Half of the queue is left to others, whoever fills it.
        if not self._patience or len(self._waiting) >= self._max_queue or own >= math.ceil(self._max_queue / 2):
            raise obstacle
        self._waiting[place] = None
        place.decided = trio.Event()
        try:
            with trio.move_on_after(self._patience):
                await place.decided.wait()
        except trio.Cancelled:
            self._free(place)
            raise
        finally:
            if place in self._waiting:
                del self._waiting[place]
                self._hand_out()  # who gave up may have stood before others
        if place in self._given:
            return
        raise place.refusal or self._obstacle(place) or obstacle

    def _give(self, place: Place) -> None:
        self._given[place] = None
        self._of_keys[place.label] += place.turns
        self._of_backends[place.backend] += place.turns

    def _free(self, place: Place) -> None:
        if place not in self._given:
            return
        del self._given[place]
        self._of_backends[place.backend] -= place.turns
        self._of_keys[place.label] -= place.turns
        if not self._of_keys[place.label]:
            del self._of_keys[place.label]
        self._hand_out()

    def _hand_out(self) -> None:
        for each in list(self._waiting):
            if self._obstacle(each) is None:
                del self._waiting[each]
                self._give(each)
                each.decide()

    def _refuse(self, place: Place, error: BridgeError) -> None:
        del self._waiting[place]
        place.refusal = error
        place.decide()

    def _expel(self, label: str) -> None:
        """A key is not let in any more: what runs for it ends, what waits is refused."""
        self._buckets.pop(label, None)
        for place in [each for each in self._waiting if each.label == label]:
            self._refuse(place, _gone())
        self._hand_out()
        for place in [each for each in self._given if each.label == label]:
            place.cut(_gone())


def _gone() -> Unauthorized:
    return Unauthorized("This API key has been revoked, or has expired. `codex-bridge keys add NAME` makes a new one.")


def _stopping() -> NotReady:
    return NotReady("The bridge is shutting down.", code="shutdown_initiated", retry_after=5)
