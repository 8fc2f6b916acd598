"""What a provider's cache knows a conversation by. Pure."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any
from uuid import UUID

from bridge.turn.items import Message
from bridge.turn.turn import Turn

MAX_SAID = 4096
"""Characters of a conversation's first message that tell it from others."""


def session_of(data: dict[str, Any], turn: Turn, key: str) -> str:
    """What a provider's cache knows the conversation by: the client's own name for it, else how it began.

    The client's key is part of it, so that nobody shares another's.
    """
    named = data.get("prompt_cache_key")
    first = turn.items[0]
    said = first.text[:MAX_SAID] if isinstance(first, Message) else ""
    begun = (named,) if isinstance(named, str) and named else (turn.instructions, said)
    digest = blake2b(repr((key, *begun)).encode("utf-8", "replace"), digest_size=16)
    return str(UUID(bytes=digest.digest()))
