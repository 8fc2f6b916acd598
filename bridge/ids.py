"""Ids: random and unique."""

from __future__ import annotations

import re
import secrets
import uuid

_DIGITS = 32
_drawn: list[str] = []


def new_id(prefix: str) -> str:
    """A random id that cannot be guessed."""
    if not _drawn:
        # A request needs about ten ids, so randomness for many is drawn in one system call.
        digits = secrets.token_hex(64 * _DIGITS // 2)
        _drawn.extend(digits[at : at + _DIGITS] for at in range(0, len(digits), _DIGITS))
    return f"{prefix}_{_drawn.pop()}"


def is_ours(name: str, prefix: str) -> bool:
    """Whether a name has the form of `new_id`; clients cannot choose such names."""
    return re.fullmatch(rf"{prefix}_[0-9a-f]{{32}}", name) is not None


def new_session() -> str:
    """An id for a conversation that has none."""
    return str(uuid.uuid4())
