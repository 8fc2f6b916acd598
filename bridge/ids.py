"""Names that nobody else has."""

from __future__ import annotations

import re
import secrets
import uuid


def new_id(prefix: str) -> str:
    """An id that cannot be guessed."""
    return f"{prefix}_{secrets.token_hex(16)}"


def is_ours(name: str, prefix: str) -> bool:
    """Whether a name has the form that `new_id` gives, so that no client can have chosen it."""
    return re.fullmatch(rf"{prefix}_[0-9a-f]{{32}}", name) is not None


def new_session() -> str:
    """A name for a conversation that has none."""
    return str(uuid.uuid4())
