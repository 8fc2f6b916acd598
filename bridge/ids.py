"""Names that nobody else has."""

from __future__ import annotations

import secrets
import uuid


def new_id(prefix: str) -> str:
    """An id that cannot be guessed."""
    return f"{prefix}_{secrets.token_hex(16)}"


def new_session() -> str:
    """A name for a conversation that has none."""
    return str(uuid.uuid4())
