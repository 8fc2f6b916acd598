"""The API keys that clients must send: the operator's, the one that is made at first start, and those in the store."""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import trio

from bridge.auth.key_store import ClientKey, given_key, own_key, read_keys
from bridge.config import Settings, api_key_file, key_store_file
from bridge.errors import ConfigError, Unauthorized
from bridge.urls import is_loopback

log = logging.getLogger("bridge.server")

Mark = tuple[int, ...] | None

WATCH = 1.0
"""Seconds between two looks at the store while nobody asks for anything."""
SHORTEST = 16
"""Characters of a key for other machines: they can try as many as they like."""


def load_keys(settings: Settings) -> tuple[tuple[str, ...], Path | None]:
    """(the API keys, the file that holds the one made at first start — None when it is not used).

    That one is for this machine alone: it is used on loopback, where no other is configured.
    """
    if settings.api_keys or not is_loopback(settings.host):
        return settings.api_keys, None
    path = api_key_file()
    return (own_key(path),), path


def check_bind(settings: Settings) -> None:
    """Refuse to listen to the world with the key that was made for this machine alone, or with one that can be guessed.

    Raises ConfigError.
    """
    if is_loopback(settings.host):
        return
    if any(len(key) < SHORTEST for key in settings.api_keys):
        raise ConfigError(
            f"--host {settings.host} is reachable from other machines, and a key in PROXY_API_KEY has fewer than "
            f"{SHORTEST} characters: make one that cannot be guessed with `codex-bridge keys add NAME`."
        )
    if settings.api_keys:
        return
    if all(key.has_expired(time.time()) for key in read_keys(key_store_file())):
        raise ConfigError(
            f"--host {settings.host} is reachable from other machines: make a key with `codex-bridge keys add NAME`, "
            "or set one of your own with PROXY_API_KEY."
        )


class Keyring:
    """The keys that are let in now: those that are given, and those in the file `store`, however often it changes.

    A store that becomes unreadable changes nothing: the keys that were there last are used on, and `fault` says why.
    One that is taken away has no keys any more. Raises ConfigError for one that cannot be read from the beginning.
    Each of `on_gone` is called with the label of a key that was let in and is not any more, within a second or two.
    """

    def __init__(self, keys: Iterable[str], store: Path | None = None, *, now: Callable[[], float] = time.time) -> None:
        self._given = tuple(given_key(key) for key in keys)
        self._store = store
        self._now = now
        self._reading = trio.Lock()
        self.fault: str | None = None
        self.on_gone: list[Callable[[str], None]] = []
        self._valid: dict[str, ClientKey] = {}
        self._mark = None if store is None else _mark_of(store)
        self._failed: Mark = ()
        self._again = -math.inf
        self._use(() if store is None else read_keys(store))

    async def find(self, key: bytes) -> ClientKey:
        """What is known of a key. Raises Unauthorized for one that is not let in."""
        await self.refresh()
        digest = hashlib.sha256(key).digest()
        # Every key is compared, in constant time each: nothing is learnt from how long it takes.
        found = [known for each, known in self._digests if hmac.compare_digest(digest, each)]
        if not key or not found:
            raise Unauthorized(
                "Missing or wrong API key. Send it as `Authorization: Bearer KEY`; unless PROXY_API_KEY sets it, the "
                "bridge prints at start where it is kept, and `codex-bridge keys add NAME` makes another."
            )
        if found[0].has_expired(self._now()):
            raise Unauthorized("This API key has expired. `codex-bridge keys add NAME` makes a new one.")
        return found[0]

    def get(self, label: str) -> ClientKey | None:
        """What was known of a key when the store was last looked at; None when it is not let in."""
        return self._valid.get(label)

    async def refresh(self) -> None:
        """Read the store again if it has changed. That costs one look at the directory where it has not."""
        if self._store is None or self._is_known(_mark_of(self._store)):
            return
        async with self._reading:
            mark = _mark_of(self._store)
            if self._is_known(mark):
                return
            try:
                keys = await trio.to_thread.run_sync(read_keys, self._store)
            except (ConfigError, RuntimeError) as error:  # the second: there is no thread to be had
                self._note_fault(str(error))
                # It may have been for want of something: what has not been read must not be taken for known.
                self._failed, self._again = mark, trio.current_time() + WATCH
                return
            if self.fault is not None:
                log.warning("the key store can be read again")
            self.fault = None
            # What was read may be newer than its mark: then it is read once more, and nothing is missed.
            self._mark = mark
            self._use(keys)

    def _is_known(self, mark: Mark) -> bool:
        """Whether there is nothing to read; a store that could not be read is tried again, but not all the time."""
        return mark == self._mark or (mark == self._failed and trio.current_time() < self._again)

    def _note_fault(self, fault: str) -> None:
        if fault != self.fault:
            log.error("%s Until then the keys that were there before are let in.", fault)
        self.fault = fault

    async def watch(self) -> None:
        """Until cancelled, look at the store and at the clock, so that a key ends also while nobody uses it."""
        while True:
            await trio.sleep(WATCH)
            await self.refresh()
            self._settle()

    def _use(self, stored: tuple[ClientKey, ...]) -> None:
        self._digests = [(bytes.fromhex(key.sha256), key) for key in (*self._given, *stored)]
        self._settle()

    def _settle(self) -> None:
        """Note who is let in now, and tell who is not any more."""
        now = self._now()
        before = self._valid
        self._valid = {key.label: key for _, key in self._digests if not key.has_expired(now)}
        for label in before.keys() - self._valid.keys():
            for tell in self.on_gone:
                tell(label)


def _mark_of(path: Path) -> Mark:
    """What changes whenever the file does; None where there is none."""
    try:
        about = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        return (error.errno or 0,)
    return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns
