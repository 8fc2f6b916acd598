"""Reasoning as signatures: the API has no item for encrypted reasoning, so it travels on the next part of the answer.

A signature is base64. Reasoning of other providers is in it with a mark. Signatures of Google's own models stay as they
are, and are kept by the id of their call (see `protocols.chat.calls`).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence

from bridge.core.items import RawItem
from bridge.core.thoughts import GEMINI
from bridge.protocols.chat.calls import pack

_MARK = b"turnbridge.thoughts.1\n"


def signature_of(reasoning: Sequence[str]) -> str:
    """The `encrypted_content` of reasoning items as one signature."""
    return base64.b64encode(_MARK + "\n".join(reasoning).encode()).decode()


def thoughts_in(signature: str, call_id: str | None) -> Iterator[RawItem]:
    """The reasoning items of a part's signature. Google's own signature belongs to the call of its part, if any."""
    for content in contents_of(signature, call_id):
        yield RawItem("reasoning", {"type": "reasoning", "summary": [], "encrypted_content": content})


def contents_of(signature: str, call_id: str | None) -> list[str]:
    """The `encrypted_content` of each reasoning item in a signature."""
    try:
        data = base64.b64decode(signature, validate=True)
        if data.startswith(_MARK):
            return data.removeprefix(_MARK).decode().split("\n")
    except (binascii.Error, ValueError):
        pass
    return [pack({call_id: signature})] if call_id is not None else []


def is_googles(content: str) -> bool:
    """Whether `encrypted_content` holds signatures of Google's models."""
    return content.startswith(GEMINI)
