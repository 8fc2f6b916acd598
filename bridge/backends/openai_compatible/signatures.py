"""Gemini's thought signatures: what its calls carry, and want back when their outputs are sent.

Gemini 3 refuses a follow-up (400) where the first call of an answer has lost its signature. A client of the chat
completions API has no place to keep one. A client of the Responses API has: encrypted reasoning, which it gives back
untouched. So the signatures of an answer travel in a reasoning item before its calls. For calls that come without,
there is the word that Google documents for them (ai.google.dev/gemini-api/docs/thought-signatures); the model then goes
on without its earlier thoughts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from bridge.turn.items import RawItem
from bridge.turn.thoughts import GEMINI

NO_SIGNATURE = "skip_thought_signature_validator"
_NEEDS_NONE = re.compile(r"gemini-[12]\b")


def signature_of(call: Mapping[str, Any]) -> str | None:
    """The signature in a call of the stream."""
    extra = call.get("extra_content")
    google = extra.get("google") if isinstance(extra, dict) else None
    signature = google.get("thought_signature") if isinstance(google, dict) else None
    return signature if isinstance(signature, str) and signature else None


def pack(signatures: Mapping[str, str]) -> str:
    """Signatures by call id, as the content of a reasoning item."""
    return GEMINI + orjson.dumps(dict(signatures)).decode()


def unpack(item: RawItem) -> dict[str, str]:
    """The signatures in an item that a client gives back; none in one that was not packed here."""
    content = item.data.get("encrypted_content") if item.type == "reasoning" else None
    if not isinstance(content, str) or not content.startswith(GEMINI):
        return {}
    try:
        packed = orjson.loads(content.removeprefix(GEMINI))
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(packed, dict):
        return {}
    return {call_id: signature for call_id, signature in packed.items() if isinstance(signature, str)}


def extra_content(signature: str | None, model: str, *, first: bool) -> dict[str, Any]:
    """What a call of the history gets beside its function. Only the first of an answer needs any."""
    if signature is None and first and not _NEEDS_NONE.search(model):
        signature = NO_SIGNATURE
    return {} if signature is None else {"extra_content": {"google": {"thought_signature": signature}}}
