"""The API keys that clients must send: those of the operator, or the one that is made at first start."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from bridge.config import Settings, api_key_file
from bridge.errors import ConfigError
from bridge.urls import is_loopback


def load_keys(settings: Settings) -> tuple[tuple[str, ...], Path | None]:
    """(the API keys, the file that holds the one made at first start — None when keys are configured)."""
    if settings.api_keys:
        return settings.api_keys, None
    path = api_key_file()
    try:
        key = path.read_text(encoding="ascii").strip()
        if key:
            return (key,), path
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The API key in {path} cannot be read: {error}") from error
    key = f"cb-{secrets.token_urlsafe(32)}"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(key + "\n")
    except OSError as error:
        raise ConfigError(
            f"No API key can be kept in {path}: {error.strerror}. "
            "Set PROXY_API_KEY, or XDG_STATE_HOME to another directory."
        ) from error
    return (key,), path


def check_bind(settings: Settings) -> None:
    """Refuse to listen to the world with the key that was made for this machine alone."""
    if not is_loopback(settings.host) and not settings.api_keys:
        raise ConfigError(
            f"--host {settings.host} is reachable from other machines: set a key of your own with PROXY_API_KEY."
        )
