"""Reasoning as signatures: the API has no item for encrypted reasoning, so it travels on the next part of the answer.

A signature is base64. Reasoning of other providers is in it with a mark. Signatures of Google's own models stay as they
are, and are kept by the id of their call (see `protocols.chat.calls`).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import orjson

from bridge.core.items import RawItem
from bridge.core.thoughts import GEMINI
from bridge.protocols.chat.calls import pack

_MARK = b"turnbridge.thoughts.1:"


class Thought(NamedTuple):
    """Encrypted reasoning. The provider of the Responses API wants it back under the id of its item."""

    item: str | None
    content: str


def standard_base64(data: str) -> str:
    """Base64 in the usual alphabet and padded: Google's Python SDK sends the one for URLs."""
    return data.replace("-", "+").replace("_", "/") + "=" * (-len(data) % 4)


def signature_of(thoughts: Sequence[Thought]) -> str:
    """Encrypted reasoning as one signature."""
    return base64.b64encode(_MARK + orjson.dumps(list(map(list, thoughts)))).decode()


def thoughts_in(signature: str, call_id: str | None) -> list[Thought]:
    """The reasoning in a part's signature. Google's own signature belongs to the call of its part, if any."""
    try:
        standard = standard_base64(signature)
        data = base64.b64decode(standard, validate=True)
        signature = standard
        if data.startswith(_MARK):
            found = [Thought(*thought) for thought in orjson.loads(data.removeprefix(_MARK))]
            return [each for each in found if isinstance(each.content, str) and isinstance(each.item, str | None)]
    except (binascii.Error, ValueError, TypeError):
        pass
    return [Thought(None, pack({call_id: signature}))] if call_id is not None else []


def items_in(signature: str, call_id: str | None) -> Iterator[RawItem]:
    """The same as items of a conversation."""
    for item, content in thoughts_in(signature, call_id):
        named = {} if item is None else {"id": item}
        yield RawItem("reasoning", {"type": "reasoning", **named, "summary": [], "encrypted_content": content})


def is_googles(content: str) -> bool:
    """Whether `encrypted_content` holds signatures of Google's models."""
    return content.startswith(GEMINI)
