"""How the values of settings are read from text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import ValidationInfo

from bridge.urls import check_database_url, parse_shared_server


def split(value: Any) -> Any:
    """`a, b` → ("a", "b"); a list stays as it is."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


_PAIRS = {"cap_agents": "agent=model", "cap_users": "key-0123456789ab=user"}


def pair(value: Any, info: ValidationInfo) -> Any:
    """`a=b, c=d` → {"a": "b", "c": "d"}."""
    if not isinstance(value, str):
        return value
    pairs = [part.partition("=") for part in split(value)]
    if not all(name.strip() and target.strip() for name, _, target in pairs):
        form = _PAIRS.get(info.field_name or "", "alias=model")
        raise ValueError(f"write it as {form}, {form}")
    return {name.strip(): target.strip() for name, _, target in pairs}


def absolute(path: Path | str) -> Path:
    # os.path.expanduser leaves `~unknown` as it is, where Path.expanduser raises.
    return Path(os.path.expanduser(path)).absolute()


def store_kind(store: str) -> str:
    """The kind of a store, from its URL or name."""
    return "postgresql" if store.startswith(("postgresql://", "postgres://")) else store


def check_store(store: str) -> str:
    """A store's name or URL. Raises ValueError, without the value: it may be a misspelt URL with a password."""
    if store_kind(store) == "postgresql":
        return check_database_url(store)
    if store not in ("sqlite", "memory", "off"):
        raise ValueError("choose sqlite, memory or off, or write postgresql://USER:PASSWORD@HOST/DATABASE")
    return store


def check_shared(url: str | None) -> str | None:
    """The URL of a Valkey or Redis server. Raises ValueError, without the value."""
    if url is not None:
        parse_shared_server(url)
    return url
