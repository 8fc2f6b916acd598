"""Encrypted reasoning goes back to the provider that made it, and to no other.

Providers encrypt or sign a model's reasoning and require it unchanged. A provider that gets another one's reasoning
refuses the whole request (`invalid_encrypted_content`). Encrypted reasoning of the Responses API does not name its
provider, so the client gets it with a mark of its owner. Reasoning without a mark is passed on: the client has it from
the provider itself, or from an older version of this program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b

from bridge.core.items import Item, RawItem
from bridge.core.turn import Turn

ANTHROPIC = "anthropic.thinking.1:"
"""The mark of signed reasoning (see `protocols.messages.models`)."""
GEMINI = "gemini-signatures:"
"""The mark of signed calls (see `protocols.chat.calls`)."""
_SEALED = re.compile(r"bridge\.thought\.1\.([0-9a-f]{16}):")


def seal(turn: Turn, content: str) -> str:
    """Encrypted content from this turn's provider, as the client gets it."""
    return f"bridge.thought.1.{_owner(turn)}:{content}"


def own_items(turn: Turn) -> Iterator[Item]:
    """A turn's items for a provider of the Responses API: its own reasoning unmarked, and none of other providers."""
    for item in turn.items:
        if not isinstance(item, RawItem) or item.type != "reasoning":
            yield item
        elif (own := _own(item, turn)) is not None:
            yield own


def _own(item: RawItem, turn: Turn) -> RawItem | None:
    content = item.data.get("encrypted_content")
    if not isinstance(content, str):
        return item
    if content.startswith((ANTHROPIC, GEMINI)):
        return None
    found = _SEALED.match(content)
    if found is None:
        return item
    if found[1] != _owner(turn):
        return None
    return replace(item, data={**item.data, "encrypted_content": content[found.end() :]})


def _owner(turn: Turn) -> str:
    """The provider behind a turn's backend, as a digest: clients do not need to see the operator's names."""
    return blake2b(f"{turn.backend}/{turn.provider or ''}".encode(), digest_size=8).hexdigest()
