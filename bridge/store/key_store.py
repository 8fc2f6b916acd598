"""The API keys of the bridge's own clients, by name: the SHA-256 of each key and its limits. They are in a file, or in
the PostgreSQL database of several bridges (`postgres/keys.py`).

A plain hash is enough: a key is 256 random bits, which cannot be searched. Slow password hashes protect secrets that
people choose. Reading the store reveals no key. The bridge checks whether it has changed (`app/keys.py`), so that no
command needs a socket or a signal to reach it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from bridge.budgets import check_budgets
from bridge.errors import ConfigError, UsageError
from bridge.settings import Settings, key_store_file
from bridge.store.private_files import read_whole, replace_file, take_lock

MAX_KEYS = 1000
"""Every request is compared with every key."""
MAX_FILE = 4 * 1024 * 1024
LOCK_SECONDS = 10.0
POLL = 0.02

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_WILD = re.compile(r"[*?\[]")
_Limit = Annotated[int, Field(ge=1, le=1_000_000_000)]


class ClientKey(BaseModel):
    """One client's key, without the key itself. A limit of None means the bridge's own limit."""

    # An unknown member may be a limit of a newer version: such a key must not be used without it.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: str = Field(pattern=_NAME)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    created: AwareDatetime
    expires: AwareDatetime | None = None
    models: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = ()
    """Names or patterns; empty means every model."""
    max_turns: _Limit | None = None
    """Concurrent turns."""
    max_requests: _Limit | None = None
    """Turns started per minute."""
    max_connections: _Limit | None = None
    """Concurrent requests and WebSockets."""
    max_body: Annotated[int, Field(ge=1024, le=1_000_000_000_000)] | None = None
    """Bytes."""
    budgets: Annotated[tuple[str, ...], AfterValidator(check_budgets)] | None = None
    """As `parse_budget` reads them."""

    @property
    def label(self) -> str:
        """The name of the key in logs, metrics and usage."""
        return label_of(bytes.fromhex(self.sha256))

    def has_expired(self, now: float) -> bool:
        """Whether it has expired; `now` is in seconds since 1970."""
        return self.expires is not None and self.expires.timestamp() <= now

    def allows(self, *names: str) -> bool:
        """Whether this key may use a model that goes by these names."""
        return not self.models or any(_fits(pattern, name) for pattern in self.models for name in names)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    version: Literal[1] = 1
    keys: tuple[ClientKey, ...] = Field(default=(), max_length=MAX_KEYS)


def label_of(digest: bytes) -> str:
    """The public label of a key, from its SHA-256."""
    return f"key-{digest.hex()[:12]}"


def new_key() -> str:
    return f"cb-{secrets.token_urlsafe(32)}"


def given_key(key: str) -> ClientKey:
    """The key that the operator has set, without limits of its own."""
    return ClientKey(name="PROXY_API_KEY", sha256=hashlib.sha256(key.encode()).hexdigest(), created=datetime.now(UTC))


def own_key(path: Path) -> str:
    """The key for this machine, in a file of its own, created if missing. Raises ConfigError.

    Of two processes that would create it at once, one waits and uses the key of the other.
    """
    try:
        if (key := _read_key(path)) is None:
            with _locked(path):
                if (key := _read_key(path)) is None:
                    key = new_key()
                    replace_file(path, f"{key}\n".encode())
    except (OSError, UnicodeDecodeError) as error:
        reason = _reason(error) if isinstance(error, OSError) else "it is not text"
        raise ConfigError(
            f"Cannot store an API key in {path}: {reason}. "
            "Move the file away, set PROXY_API_KEY, or set XDG_STATE_HOME to another directory."
        ) from None
    return key


def _read_key(path: Path) -> str | None:
    try:
        return read_whole(path, limit=MAX_FILE, trusted=True).decode("ascii").strip() or None
    except FileNotFoundError:
        return None


Mark = tuple[int, ...] | None


class KeyStore(Protocol):
    """Where the keys are. Every method may block, and raises ConfigError when the keys cannot be read or written."""

    is_remote: bool
    """Whether `mark` may block, too."""

    def mark(self) -> Mark:
        """A value that changes whenever the keys do."""

    def read(self) -> tuple[ClientKey, ...]:
        """The keys."""

    def add(self, name: str, *, now: datetime, **allowance: object) -> tuple[str, ClientKey]:
        """Make and store a key: (the key, which is stored nowhere; its entry).

        `allowance` are members of a ClientKey. Raises UsageError for an invalid name or limit.
        """

    def revoke(self, name: str) -> ClientKey:
        """Remove a key and return its entry. Raises UsageError for an unknown name."""

    def write(self, keys: tuple[ClientKey, ...]) -> None:
        """Replace all keys."""


class KeysUnavailable(ConfigError):
    """The keys cannot be read at the moment."""


class KeyFile:
    """The keys in a file that only its owner can write. See `KeyStore`."""

    is_remote = False

    def __init__(self, path: Path) -> None:
        self._path = path

    def mark(self) -> Mark:
        try:
            about = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            return (error.errno or 0,)
        return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns

    def read(self) -> tuple[ClientKey, ...]:
        """An empty list without a file. One that cannot be trusted is not read."""
        path = self._path
        try:
            content = read_whole(path, limit=MAX_FILE, trusted=True)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise _broken(path, _reason(error)) from None
        try:
            keys = _File.model_validate_json(content).keys
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False)[0]
            location = ".".join(map(str, fault["loc"]))
            raise _broken(path, f"{location}: {fault['msg']}" if location else str(fault["msg"])) from None
        if len({key.name for key in keys}) != len(keys) or len({key.sha256 for key in keys}) != len(keys):
            raise _broken(path, "it holds the same key twice")
        return keys

    def add(self, name: str, *, now: datetime, **allowance: object) -> tuple[str, ClientKey]:
        key, entry = make_key(name, now=now, **allowance)
        with _locked(self._path):
            keys = self.read()
            check_room(keys, name)
            self._write((*keys, entry))
        return key, entry

    def revoke(self, name: str) -> ClientKey:
        with _locked(self._path):
            keys = self.read()
            found = find_key(keys, name)
            self._write(tuple(key for key in keys if key is not found))
        return found

    def write(self, keys: tuple[ClientKey, ...]) -> None:
        with _locked(self._path):
            self._write(keys)

    def _write(self, keys: tuple[ClientKey, ...]) -> None:
        try:
            replace_file(self._path, _File(keys=keys).model_dump_json(indent=2, exclude_none=True).encode() + b"\n")
        except OSError as error:
            raise _unwritable(self._path, error) from None


def open_keys(settings: Settings) -> KeyStore:
    """The keys of clients, where the settings say."""
    if (url := settings.database_url) is None:
        return KeyFile(key_store_file())
    from bridge.store.postgres.keys import KeyTable  # with its driver

    return KeyTable(url)


def make_key(name: str, *, now: datetime, **allowance: object) -> tuple[str, ClientKey]:
    """A new key and its entry. Raises UsageError for an invalid name or limit."""
    if not re.fullmatch(_NAME, name) or "\n" in name:
        raise UsageError(f"Invalid key name {name[:80]!r}. Use 1 to 64 letters, digits, dots, dashes or underscores.")
    key = new_key()
    digest = hashlib.sha256(key.encode()).hexdigest()
    try:
        return key, ClientKey.model_validate({"name": name, "sha256": digest, "created": now, **allowance})
    except ValidationError as error:
        fault = error.errors()[0]
        raise UsageError(f"--{str(fault['loc'][0]).replace('_', '-')}: {fault['msg']}.") from None


def check_room(keys: tuple[ClientKey, ...], name: str) -> None:
    """Raise UsageError if no key of this name can be added."""
    if any(each.name == name for each in keys):
        raise UsageError(
            f"A key named {name!r} exists already. Choose another name, or revoke it first: "
            f"`turnbridge keys revoke {name}`."
        )
    if len(keys) >= MAX_KEYS:
        raise UsageError(f"The limit of {MAX_KEYS} keys is reached. Revoke some first.")


def find_key(keys: tuple[ClientKey, ...], name: str) -> ClientKey:
    """The entry of this name. Raises UsageError if there is none."""
    found = next((key for key in keys if key.name == name), None)
    if found is None:
        names = ", ".join(key.name for key in keys[:8]) + (", …" if len(keys) > 8 else "")
        known = f"Existing keys: {names}." if keys else "There are no keys."
        raise UsageError(f"No key named {name[:80]!r}. {known}")
    return found


def _fits(pattern: str, name: str) -> bool:
    pattern, name = pattern.lower(), name.lower()
    return fnmatchcase(name, pattern) if _WILD.search(pattern) else name == pattern


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the file against other commands, which wait. The system releases the lock if the process dies."""
    lock = path.with_name(f"{path.name}.lock")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while not take_lock(descriptor):
            if time.monotonic() > deadline:
                raise ConfigError(f"Another command holds the lock {lock}. Try again when it has finished.")
            time.sleep(POLL)
        yield
    finally:
        os.close(descriptor)


def _reason(error: OSError) -> str:
    return "it is a link" if error.errno == errno.ELOOP else error.strerror or "it cannot be read"


def _broken(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"Cannot use the keys in {path}: {reason}. Fix the file, or move it away and create the keys again."
    )


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"Cannot write {path}: {error.strerror}. Set XDG_STATE_HOME to a writable directory.")
