"""Opens a store of either kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bridge.store.base import Store
from bridge.store.sqlite import SqliteStore


def open_store(where: str | Path | None, **options: Any) -> Store:
    """The store in a file, in memory (None), or in the PostgreSQL database of a URL. Blocks, and raises ConfigError."""
    if not isinstance(where, str):
        return SqliteStore(where, **options)
    from bridge.store.postgres.store import PostgresStore  # with its driver

    return PostgresStore(where, **options)
