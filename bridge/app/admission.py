"""Slots for turns: for each backend, and for each key that has limits of its own.

A request without a free slot waits for a while in a bounded queue. Slots are given in order of arrival, but a request
never waits behind a key that has reached its own limit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import trio

from bridge.app.keys import Keyring
from bridge.app.shared_limits import SharedLimits
from bridge.core.models import ModelChoice
from bridge.errors import (
    BridgeError,
    InvalidRequest,
    KeyLimitReached,
    ModelNotFound,
    NotReady,
    Overloaded,
    Unauthorized,
)
from bridge.routing.router import Router
from bridge.store.key_store import ClientKey


def visible_models(router: Router, key: ClientKey | None, *, aliases: bool = True) -> list[str]:
    """The names of the existing models that a key may use."""
    names = router.models(aliases=aliases)
    if key is None or not key.models:
        return names

    def is_visible(name: str) -> bool:
        try:
            return key.allows(name, *_own_names(router.resolve(name)))
        except ModelNotFound:
            return key.allows(name)

    return list(filter(is_visible, names))


def resolve_visible(router: Router, key: ClientKey | None, requested: str, *, keyed: bool = False) -> ModelChoice:
    """As `Router.resolve`, for one client: the key must allow the requested name or the model behind it."""
    if key is None or not key.models:
        return router.resolve(requested, keyed=keyed)
    try:
        choice = router.resolve(requested, keyed=keyed)
    except ModelNotFound:
        choice = None
    if choice is None or not key.allows(requested, *_own_names(choice)):
        # As if the model did not exist: a restricted client learns nothing about other models and their backends.
        raise ModelNotFound(requested, visible_models(router, key))
    return choice


def _own_names(choice: ModelChoice) -> list[str]:
    """The model's own name, unless a provider serves it: another provider may use the same name for another model."""
    return [choice.effective] if choice.provider is None else []


RETRY_AFTER = 2.0
"""The Retry-After of a request that found no free slot, in seconds."""

RETRY_TURNS = 0.2
"""Seconds between two attempts to get a turn that may have ended at another bridge."""

Cut = Callable[[BridgeError], None]


@dataclass(eq=False, slots=True)
class Slot:
    """A request's claim to run `turns` turns, from the moment it is granted until `free`."""

    admission: Admission
    label: str
    """Of the client's key."""
    backend: str
    turns: int
    cut: Cut
    """Ends the request, for the reason given."""
    shares: bool = False
    """Whether the turns are counted for all bridges."""
    decided: trio.Event | None = None
    """Set when a waiting claim has been granted or refused."""
    refusal: BridgeError | None = None

    def free(self) -> None:
        """Give the slot up. May be called more than once."""
        self.admission._free(self)
        self.admission._free_shared(self)

    def decide(self) -> None:
        """Wake the request that waits for this slot."""
        if self.decided is not None:
            self.decided.set()


class Admission:
    """Decides which turns may begin. Without a keyring no key has limits; without `max_turns` no backend has."""

    def __init__(
        self,
        keyring: Keyring | None = None,
        *,
        max_turns: float = math.inf,
        max_queue: int = 0,
        patience: float = 0,
        shared: SharedLimits | None = None,
    ) -> None:
        self.shared = shared
        self._keyring = keyring
        self._max_turns = max_turns
        self._max_queue = max_queue
        self._patience = patience
        self._granted: dict[Slot, None] = {}
        self._of_keys: Counter[str] = Counter()
        self._of_backends: Counter[str] = Counter()
        """Turns that run, by key and by backend."""
        self._waiting: dict[Slot, None] = {}
        self._waiting_elsewhere: Counter[str] = Counter()
        """Requests that wait until turns of their key end at other bridges, by key."""
        self._buckets: dict[str, tuple[float, float]] = {}
        """Token bucket of each key with a rate limit: requests left, and the time of that count."""
        self._closed = False
        if keyring is not None:
            keyring.on_gone.append(self._revoke)

    @property
    def running(self) -> int:
        """Turns that hold a slot."""
        return self._of_backends.total()

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting) + self._waiting_elsewhere.total()

    def key(self, label: str) -> ClientKey | None:
        """The stored key of this label; None for a key without limits, and for one that is no longer valid."""
        return self._keyring.get(label) if self._keyring is not None else None

    async def enter(self, label: str, backend: str, turns: int, cut: Cut) -> Slot:
        """Wait for a slot, which must be freed. `cut` is called if the key is revoked while the slot is held.

        Raises Unauthorized for a key that is no longer valid, KeyLimitReached at a limit of the key, Overloaded at a
        limit of the bridge, NotReady while the bridge stops.
        """
        await self.count(label, turns)
        slot = Slot(self, label, backend, turns, cut)
        if self.shared is not None:
            await self._share(slot, self.shared)
        try:
            if (obstacle := self._obstacle(slot)) is None:
                self._grant(slot)
            else:
                await self._wait(slot, obstacle)
        except BaseException:
            self._free_shared(slot)
            raise
        return slot

    async def _share(self, slot: Slot, shared: SharedLimits) -> None:
        """Count the turns of a key with a limit for all bridges. It waits here without holding up other keys."""
        label, until = slot.label, trio.current_time() + self._patience
        while (key := self.key(label)) is not None and key.max_turns is not None:
            if await shared.take_turns(label, slot.turns, key.max_turns):
                slot.shares = True
                break
            if trio.current_time() >= until or self._is_full(label):
                raise _too_many_turns(key.max_turns)
            self._waiting_elsewhere[label] += 1
            try:
                await trio.sleep(RETRY_TURNS)
            finally:
                self._waiting_elsewhere[label] -= 1
            await self.check_key(label)
        if self._closed:
            self._free_shared(slot)
            raise _stopping()

    def _free_shared(self, slot: Slot) -> None:
        if slot.shares and self.shared is not None:
            slot.shares = False
            self.shared.free_turns(slot.label, slot.turns)

    def move(self, slot: Slot | None, label: str, backend: str, turns: int, cut: Cut) -> Slot:
        """A slot of another backend for a request that was admitted, in place of `slot`. It does not wait for one.

        Raises as `enter` does; then `slot` remains as it is. The key's slot is not given to others in between.
        """
        if self._closed:
            raise _stopping()
        wanted = Slot(self, label, backend, turns, cut)
        held = slot if slot in self._granted else None
        if held is not None:
            self._count(held, -1)
        obstacle = self._obstacle(wanted)
        if held is not None:
            self._count(held, 1)
        if obstacle is not None:
            raise obstacle
        self._grant(wanted)
        key = self.key(label)
        if self.shared is not None and key is not None and key.max_turns is not None:
            self.shared.hold_turns(label, turns)
            wanted.shares = True
        if held is not None:
            held.free()
        return wanted

    def close(self) -> None:
        """The bridge stops: admit no more turns, and fail those that wait."""
        self._closed = True
        for slot in list(self._waiting):
            self._refuse(slot, _stopping())

    async def check_key(self, label: str) -> None:
        """Raise Unauthorized if the key has been revoked or has expired since the request was accepted."""
        if self._keyring is not None:
            await self._keyring.refresh()
            if self._keyring.get(label) is None:
                raise _revoked()

    async def count(self, label: str, turns: int = 0) -> None:
        """Count a request of this key for `turns` turns. Raises as `enter` does, but does not wait for a slot."""
        if self._closed:
            raise _stopping()
        if turns > self._max_turns:
            raise Overloaded(
                f"'n' asks for {turns} answers at once, but at most {self._max_turns} turns may run (PROXY_MAX_TURNS). "
                "Request fewer."
            )
        await self.check_key(label)
        key = self.key(label)
        if key is None:
            return
        if key.max_turns is not None and turns > key.max_turns:
            raise InvalidRequest(
                f"'n' asks for {turns} answers at once, but this key allows {key.max_turns}. Request fewer.", param="n"
            )
        if key.max_requests is not None:
            await self._take_token(label, key.max_requests)

    async def _take_token(self, label: str, per_minute: int) -> None:
        """Count a request against the key's rate. After an idle minute, a minute's worth may come at once."""
        shared, left, cost = self.shared, self._left(label, per_minute), 1
        answer = await shared.take_request(label, per_minute, left) if shared is not None else None
        if answer is not None:
            taken, left = answer
        else:
            if shared is not None:
                left = self._left(label, per_minute)  # other requests may have come while this one asked
                cost = min(shared.alone, per_minute)  # the other bridges take as much
            taken = left >= cost
            left -= cost if taken else 0
        self._buckets[label] = left, trio.current_time()
        if not taken:
            wait = (cost - left) * 60 / per_minute
            raise KeyLimitReached(
                f"Rate limit reached: this key allows {per_minute} request(s) per minute. "
                f"Retry after {math.ceil(wait)} s.",
                retry_after=wait,
            )

    def _left(self, label: str, per_minute: int) -> float:
        """How many requests this key has left now, as this bridge knows."""
        now = trio.current_time()
        left, counted_at = self._buckets.get(label, (per_minute, now))
        return min(per_minute, left + (now - counted_at) * per_minute / 60)

    def _obstacle(self, slot: Slot) -> BridgeError | None:
        """Why the slot cannot be granted now; None if it can."""
        limit = self._exceeded_key_limit(slot)
        if limit is not None:
            return _too_many_turns(limit)
        running = self._of_backends[slot.backend]
        if running + slot.turns > self._max_turns or self._is_behind(slot):
            return Overloaded(
                f"The bridge is busy: {running} turn(s) are running (PROXY_MAX_TURNS). Retry after {RETRY_AFTER:g} s.",
                retry_after=RETRY_AFTER,
            )
        return None

    def _exceeded_key_limit(self, slot: Slot) -> int | None:
        """The key's limit of concurrent turns, if this slot would exceed it."""
        key = self.key(slot.label)
        limit = key.max_turns if key is not None else None
        if limit is not None and self.shared is not None and self.shared.alone > 1:
            # At least one request, so that a key is never locked out.
            limit = max(limit // self.shared.alone, slot.turns)
        return limit if limit is not None and self._of_keys[slot.label] + slot.turns > limit else None

    def _is_behind(self, slot: Slot) -> bool:
        """Whether an earlier request waits for the same backend, and for nothing else."""
        for each in self._waiting:
            if each is slot:
                break
            if each.backend == slot.backend and self._exceeded_key_limit(each) is None:
                return True
        return False

    def _is_full(self, label: str) -> bool:
        """Whether the queue has no room for a request of this key. One key fills at most half of it."""
        of_same_key = sum(each.label == label for each in self._waiting) + self._waiting_elsewhere[label]
        return self.waiting >= self._max_queue or of_same_key >= math.ceil(self._max_queue / 2)

    async def _wait(self, slot: Slot, obstacle: BridgeError) -> None:
        if not self._patience or self._is_full(slot.label):
            raise obstacle
        self._waiting[slot] = None
        slot.decided = trio.Event()
        try:
            with trio.move_on_after(self._patience):
                await slot.decided.wait()
        except trio.Cancelled:
            self._free(slot)
            raise
        finally:
            if slot in self._waiting:
                del self._waiting[slot]
                self._grant_waiting()  # others may have been waiting behind this one
        if slot not in self._granted:
            raise slot.refusal or self._obstacle(slot) or obstacle

    def _grant(self, slot: Slot) -> None:
        self._granted[slot] = None
        self._count(slot, 1)

    def _count(self, slot: Slot, times: int) -> None:
        self._of_keys[slot.label] += times * slot.turns
        self._of_backends[slot.backend] += times * slot.turns

    def _free(self, slot: Slot) -> None:
        if slot not in self._granted:
            return
        del self._granted[slot]
        self._count(slot, -1)
        if not self._of_keys[slot.label]:
            del self._of_keys[slot.label]
        self._grant_waiting()

    def _grant_waiting(self) -> None:
        for slot in list(self._waiting):
            if self._obstacle(slot) is None:
                del self._waiting[slot]
                self._grant(slot)
                slot.decide()

    def _refuse(self, slot: Slot, error: BridgeError) -> None:
        del self._waiting[slot]
        slot.refusal = error
        slot.decide()

    def _revoke(self, label: str) -> None:
        """End what runs for a key that is no longer valid, and refuse what waits."""
        self._buckets.pop(label, None)
        for slot in [each for each in self._waiting if each.label == label]:
            self._refuse(slot, _revoked())
        self._grant_waiting()
        for slot in [each for each in self._granted if each.label == label]:
            slot.cut(_revoked())


def _revoked() -> Unauthorized:
    return Unauthorized(
        "This API key has been revoked or has expired. Create a new one with `turnbridge keys add NAME`."
    )


def _too_many_turns(limit: int) -> KeyLimitReached:
    return KeyLimitReached(
        f"Concurrency limit reached: this key allows {limit} turn(s) at once. Wait for one to end.",
        retry_after=RETRY_AFTER,
    )


def _stopping() -> NotReady:
    return NotReady("The bridge is shutting down.", code="shutdown_initiated", retry_after=5)
