"""Reasoning as signatures: the API has no item for encrypted reasoning, so it travels on the next part of the answer.

A signature is base64. Reasoning of other providers, with the mark of its owner, is wrapped in it. Signatures of
Google's own models stay as they are, and are kept by the id of their call (see `protocols.chat.calls`).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence

from bridge.core.items import RawItem
from bridge.core.thoughts import ANTHROPIC, GEMINI
from bridge.protocols.chat.calls import pack

_OURS = (ANTHROPIC, "bridge.thought.")


def signature_of(reasoning: Sequence[str]) -> str:
    """The `encrypted_content` of reasoning items as one signature."""
    return base64.b64encode("\n".join(reasoning).encode()).decode()


def thoughts_in(signature: str, call_id: str | None) -> Iterator[RawItem]:
    """The reasoning items of a part's signature. Google's own signature belongs to the call of its part, if any."""
    for content in contents_of(signature, call_id):
        yield RawItem("reasoning", {"type": "reasoning", "summary": [], "encrypted_content": content})


def contents_of(signature: str, call_id: str | None) -> list[str]:
    """The `encrypted_content` of each reasoning item in a signature."""
    try:
        text = base64.b64decode(signature, validate=True).decode()
    except (binascii.Error, ValueError):
        text = ""
    if text.startswith(_OURS):
        return text.split("\n")
    return [pack({call_id: signature})] if call_id is not None else []


def is_googles(content: str) -> bool:
    """Whether `encrypted_content` holds signatures of Google's models."""
    return content.startswith(GEMINI)
