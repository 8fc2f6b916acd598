"""The keys of our own clients, by name: kept in one file, each as its SHA-256 and what it may do.

A plain hash is enough: a key is 256 random bits, so that nobody can go through all of them; what makes hashes of
passwords slow is there for secrets that people choose. Whoever reads the file learns no key.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from bridge.auth.files import write_beside
from bridge.auth.flight import take_lock
from bridge.errors import ConfigError, UsageError

MAX_KEYS = 1000
"""Every request is compared with all of them."""
MAX_FILE = 4 * 1024 * 1024
LOCK_SECONDS = 10.0
POLL = 0.02

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_WILD = re.compile(r"[*?\[]")
_Limit = Annotated[int, Field(ge=1, le=1_000_000_000)]


class ClientKey(BaseModel):
    """What is known of one client's key, which is all but the key itself. A limit that is None is the bridge's own."""

    # A member that this version does not know may be a limit: a key is not used without it.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: str = Field(pattern=_NAME)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    created: AwareDatetime
    expires: AwareDatetime | None = None
    models: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = ()
    """Names or patterns; none at all: every model."""
    max_turns: _Limit | None = None
    """Turns at once."""
    max_requests: _Limit | None = None
    """Turns begun in a minute."""
    max_connections: _Limit | None = None
    """Requests being answered and WebSockets, at once."""
    max_body: Annotated[int, Field(ge=1024, le=1_000_000_000_000)] | None = None
    """Bytes."""

    @property
    def label(self) -> str:
        """What the key is called wherever something belongs to it."""
        return label_of(bytes.fromhex(self.sha256))

    def has_expired(self, now: float) -> bool:
        """Whether its time is over; `now` is in seconds since 1970."""
        return self.expires is not None and self.expires.timestamp() <= now

    def allows(self, *names: str) -> bool:
        """Whether one of the names of a model is one that this key may use."""
        return not self.models or any(_fits(pattern, name) for pattern in self.models for name in names)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    version: Literal[1] = 1
    keys: tuple[ClientKey, ...] = Field(default=(), max_length=MAX_KEYS)


def label_of(digest: bytes) -> str:
    """The name under which a key may be written down, from its SHA-256."""
    return f"key-{digest.hex()[:12]}"


def new_key() -> str:
    """A key that nobody can guess."""
    return f"cb-{secrets.token_urlsafe(32)}"


def given_key(key: str) -> ClientKey:
    """A key that the operator has given, without limits of its own."""
    return ClientKey(name="PROXY_API_KEY", sha256=hashlib.sha256(key.encode()).hexdigest(), created=datetime.now(UTC))


def own_key(path: Path) -> str:
    """The key for this machine, in a file of its own; it is made when there is none. Raises ConfigError.

    Of two who would make it at once, one waits, and takes the other's.
    """
    try:
        if (key := _read_key(path)) is None:
            with _locked(path):
                if (key := _read_key(path)) is None:
                    key = new_key()
                    _replace(path, f"{key}\n".encode())
    except (OSError, UnicodeDecodeError) as error:
        reason = _reason(error) if isinstance(error, OSError) else "it is no text"
        raise ConfigError(
            f"No API key can be kept in {path}: {reason}. "
            "Move it away, or set PROXY_API_KEY, or XDG_STATE_HOME to another directory."
        ) from None
    return key


def _read_key(path: Path) -> str | None:
    try:
        return _read_whole(path).decode("ascii").strip() or None
    except FileNotFoundError:
        return None


def read_keys(path: Path) -> tuple[ClientKey, ...]:
    """The keys in the store; none where there is no file. Raises ConfigError for one that cannot be trusted or read."""
    try:
        content = _read_whole(path)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise _broken(path, _reason(error)) from None
    try:
        keys = _File.model_validate_json(content).keys
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, fault["loc"]))
        raise _broken(path, f"{place}: {fault['msg']}" if place else str(fault["msg"])) from None
    if len({key.name for key in keys}) != len(keys) or len({key.sha256 for key in keys}) != len(keys):
        raise _broken(path, "a key is there twice")
    return keys


def add_key(path: Path, name: str, *, now: datetime, **allowance: object) -> tuple[str, ClientKey]:
    """Make a key and keep what must be known of it: (the key, which is nowhere else; what is kept).

    `allowance` are members of a ClientKey. Raises UsageError for a name or a limit that cannot be, ConfigError when the
    store cannot be written.
    """
    if not re.fullmatch(_NAME, name) or "\n" in name:
        raise UsageError(f"{name[:80]!r} is no name: it has 1 to 64 letters, digits, dots, dashes or underscores.")
    key = new_key()
    digest = hashlib.sha256(key.encode()).hexdigest()
    try:
        kept = ClientKey.model_validate({"name": name, "sha256": digest, "created": now, **allowance})
    except ValidationError as error:
        fault = error.errors()[0]
        raise UsageError(f"--{str(fault['loc'][0]).replace('_', '-')}: {fault['msg']}.") from None
    with _locked(path):
        keys = read_keys(path)
        if any(each.name == name for each in keys):
            raise UsageError(
                f"There is a key {name!r} already. Choose another name, or revoke it first: "
                f"`codex-bridge keys revoke {name}`."
            )
        if len(keys) >= MAX_KEYS:
            raise UsageError(f"There are {MAX_KEYS} keys, and no more can be kept: revoke some.")
        _write_keys(path, (*keys, kept))
    return key, kept


def revoke_key(path: Path, name: str) -> ClientKey:
    """Take a key away; what was known of it. Raises UsageError when there is none of this name, or ConfigError."""
    with _locked(path):
        keys = read_keys(path)
        found = [key for key in keys if key.name == name]
        if not found:
            names = ", ".join(key.name for key in keys[:8]) + (", …" if len(keys) > 8 else "")
            known = f"There are: {names}." if keys else "There are none."
            raise UsageError(f"There is no key {name[:80]!r}. {known}")
        _write_keys(path, tuple(key for key in keys if key.name != name))
    return found[0]


def _fits(pattern: str, name: str) -> bool:
    pattern, name = pattern.lower(), name.lower()
    return fnmatchcase(name, pattern) if _WILD.search(pattern) else name == pattern


def _read_whole(path: Path) -> bytes:
    """The file's content, if nobody but its owner can have written it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "it is not a file")
        if about.st_uid not in (0, os.geteuid()) or about.st_mode & 0o022:
            raise OSError(errno.EPERM, "others can write to it, or it is not yours (chmod 600 mends the first)")
        content = file.read(MAX_FILE + 1)
    if len(content) > MAX_FILE:
        raise OSError(errno.EFBIG, "it is too large")
    return content


def _write_keys(path: Path, keys: tuple[ClientKey, ...]) -> None:
    try:
        _replace(path, _File(keys=keys).model_dump_json(indent=2, exclude_none=True).encode() + b"\n")
    except OSError as error:
        raise _unwritable(path, error) from None


def _replace(path: Path, content: bytes) -> None:
    """Write a file anew, whole or not at all; the caller holds its lock. Raises OSError."""
    temporary = path.with_name(f".{path.name}.new")
    write_beside(temporary, path, content)
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Be the only one who changes the store: of two commands at once, one waits. The system frees it when we die."""
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
                raise ConfigError(f"Another command holds {lock} and does not end. Try again when it has.")
            time.sleep(POLL)
        yield
    finally:
        os.close(descriptor)


def _reason(error: OSError) -> str:
    return "it is a link" if error.errno == errno.ELOOP else error.strerror or "it cannot be read"


def _broken(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"The keys in {path} cannot be used: {reason}. Mend the file, or move it away and make the keys anew."
    )


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"No key can be kept in {path}: {error.strerror}. Set XDG_STATE_HOME to a directory that can be written."
    )
