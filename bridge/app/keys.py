"""The API keys that clients must send: the operator's, the one generated at first start, and those in the key store."""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import trio

from bridge.errors import ConfigError, NotReady, Unauthorized
from bridge.settings import Settings, api_key_file
from bridge.store.key_store import ClientKey, KeyStore, KeysUnavailable, Mark, given_key, open_keys, own_key
from bridge.urls import is_loopback

log = logging.getLogger("bridge.server")

WATCH = 0.5
"""Seconds between two checks of the key store while no request arrives, or while it is a database."""
SOON = 0.1
"""Seconds between two checks of a database for keys that are not known yet."""
UNREAD: Mark = ()
"""The mark of a database that has not been read yet."""
SHORTEST = 16
"""Minimum length of a key where other machines can connect: they can try as many keys as they like."""


def load_keys(settings: Settings) -> tuple[tuple[str, ...], Path | None]:
    """(the API keys, the file with the key generated at first start, or None if that key is not used).

    The generated key is for this machine alone: it is used on loopback when no other key is configured.
    """
    if settings.api_keys or not is_loopback(settings.host):
        return settings.api_keys, None
    path = api_key_file()
    return (own_key(path),), path


def check_bind(settings: Settings) -> None:
    """Refuse to listen on other addresses than loopback with the generated key, or with a key that can be guessed.

    Raises ConfigError.
    """
    if is_loopback(settings.host):
        return
    if any(len(key) < SHORTEST for key in settings.api_keys):
        raise ConfigError(
            f"--host {settings.host} is reachable from other machines, and a key in PROXY_API_KEY has fewer than "
            f"{SHORTEST} characters. Create a longer one with `turnbridge keys add NAME`."
        )
    if settings.api_keys:
        return
    try:
        keys = open_keys(settings).read()
    except KeysUnavailable:
        return  # until the database answers, every key is refused
    if all(key.has_expired(time.time()) for key in keys):
        raise ConfigError(
            f"--host {settings.host} is reachable from other machines and needs a key. Create one with "
            "`turnbridge keys add NAME`, or set PROXY_API_KEY."
        )


class Keyring:
    """The valid keys: the ones given, and those in the `store`, which is read again whenever it changes.

    A file is checked with every request, a database by `watch`. If the store becomes unreadable, its last keys stay
    valid and `fault` says why; a file that is deleted has no keys. Raises ConfigError for a file that cannot be read at
    the start; a database may answer later. Each callback in `on_gone` gets the label of a key that was revoked or has
    expired, within a second.
    """

    def __init__(
        self, keys: Iterable[str], store: KeyStore | None = None, *, now: Callable[[], float] = time.time
    ) -> None:
        self._given = tuple(given_key(key) for key in keys)
        self._store = store
        self._now = now
        self._reading = trio.Lock()
        self.fault: str | None = None
        self.on_gone: list[Callable[[str], None]] = []
        self._valid: dict[str, ClientKey] = {}
        self._mark: Mark = None
        self._failed: Mark = ()
        self._again = -math.inf
        self._use(())
        if store is not None:
            try:
                self._mark = store.mark()
                self._use(store.read())
            except KeysUnavailable as error:
                self._mark = UNREAD
                self._note_fault(error.message)

    async def find(self, key: bytes) -> ClientKey:
        """The key with these characters. Raises Unauthorized if it is not valid."""
        await self.refresh()
        digest = hashlib.sha256(key).digest()
        found = self._find(digest)
        if found is None and key and self._store is not None and self._store.is_remote:
            # It may have been added a moment ago. Wrong keys must not keep the database busy.
            if self._reading.locked():
                async with self._reading:
                    pass  # the request that reads them now does so for this one, too
                found = self._find(digest)
            elif trio.current_time() >= self._again:
                self._again = trio.current_time() + SOON
                await self._check_database(self._store)
                found = self._find(digest)
            if found is None and self._mark == UNREAD:
                raise NotReady("The API keys cannot be read at the moment. Try again later.", code="key_store_failing")
        if not key or found is None:
            raise Unauthorized(
                "Missing or wrong API key. Send it as `Authorization: Bearer KEY`. Unless PROXY_API_KEY sets the key, "
                "the bridge prints at start where it is stored; `turnbridge keys add NAME` creates another."
            )
        if found.has_expired(self._now()):
            raise Unauthorized("This API key has expired. Create a new one with `turnbridge keys add NAME`.")
        return found

    def _find(self, digest: bytes) -> ClientKey | None:
        # Every key is compared, each in constant time, so the duration reveals nothing.
        found = [known for each, known in self._digests if hmac.compare_digest(digest, each)]
        return found[0] if found else None

    def get(self, label: str) -> ClientKey | None:
        """The key with this label, as last read from the store; None if it is not valid."""
        return self._valid.get(label)

    @property
    def labels(self) -> list[str]:
        """The labels of all valid keys."""
        return list(self._valid)

    @property
    def operator(self) -> str | None:
        """The label of the first key that the operator has set, or that was generated for this machine."""
        return self._given[0].label if self._given else None

    def is_operator(self, label: str) -> bool:
        """Whether a key is the operator's, and not one of the key store."""
        return any(key.label == label for key in self._given)

    async def refresh(self) -> None:
        """Read a file again if it has changed. If not, this costs one `stat`. A database is read by `watch`."""
        store = self._store
        if store is None or store.is_remote or self._is_known(store.mark()):
            return
        async with self._reading:
            mark = store.mark()
            if self._is_known(mark):
                return
            try:
                keys = await trio.to_thread.run_sync(store.read)
            except (ConfigError, RuntimeError) as error:  # RuntimeError: no thread could be started
                self._note_fault(str(error))
                # The cause may be temporary (no thread, no file descriptor): try this version of the file again.
                self._failed, self._again = mark, trio.current_time() + WATCH
                return
            # The file may have changed after `mark` was taken: then it is read once more, and no change is missed.
            self._mark = mark
            self._recover()
            self._use(keys)

    async def _check_database(self, store: KeyStore) -> None:
        async with self._reading:
            try:
                mark, keys = await trio.to_thread.run_sync(_read_changed, store, self._mark)
            except (ConfigError, RuntimeError) as error:
                self._note_fault(str(error))
                return
            self._mark = mark
            self._recover()
            if keys is not None:
                self._use(keys)

    def _is_known(self, mark: Mark) -> bool:
        """Whether this version of the store has been read, or failed to be read a moment ago."""
        return mark == self._mark or (mark == self._failed and trio.current_time() < self._again)

    def _note_fault(self, fault: str) -> None:
        if fault != self.fault:
            log.error("%s Until then the keys read last stay valid.", fault)
        self.fault = fault

    def _recover(self) -> None:
        if self.fault is not None:
            log.warning("the key store can be read again")
        self.fault = None

    async def watch(self) -> None:
        """Check the key store and the clock until cancelled, so that a key also expires while it is not used."""
        while True:
            await trio.sleep(WATCH)
            if self._store is not None and self._store.is_remote:
                await self._check_database(self._store)
            await self.refresh()
            self._settle()

    def _use(self, stored: tuple[ClientKey, ...]) -> None:
        self._digests = [(bytes.fromhex(key.sha256), key) for key in (*self._given, *stored)]
        self._settle()

    def _settle(self) -> None:
        """Work out which keys are valid now, and report those that no longer are."""
        now = self._now()
        before = self._valid
        self._valid = {key.label: key for _, key in self._digests if not key.has_expired(now)}
        for label in before.keys() - self._valid.keys():
            for report in self.on_gone:
                report(label)


def _read_changed(store: KeyStore, known: Mark) -> tuple[Mark, tuple[ClientKey, ...] | None]:
    """The present mark of a store, and its keys unless the mark is known."""
    mark = store.mark()
    return mark, None if mark == known else store.read()
