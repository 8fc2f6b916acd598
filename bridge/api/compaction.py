"""Compaction: a conversation's summary as an opaque item that only its maker reads back.

Nothing is secret in it, the client has said it all: the encoding only keeps clients from taking it apart.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import Any

PREFIX = "cbc1."
MAX_SUMMARY = 1024 * 1024

PROMPT = """\
Summarise the conversation so far, for somebody who has to continue it without having seen it: what is wanted, what \
was decided, what has been done and found out (names, numbers, identifiers and quotes exactly), and what is left to \
do. Answer with the summary alone."""

INTRODUCTION = "Summary of the conversation so far:\n"


def compaction_item(item_id: str, summary: str) -> dict[str, Any]:
    """The item that stands for everything before it."""
    packed = base64.urlsafe_b64encode(zlib.compress(summary.encode())).decode()
    return {"type": "compaction", "id": item_id, "encrypted_content": PREFIX + packed}


def summary_of(item: Mapping[str, Any]) -> str | None:
    """The text that a compaction item of ours stands for; None for anything else."""
    packed = item.get("encrypted_content")
    if not isinstance(packed, str) or not packed.startswith(PREFIX):
        return None
    try:
        unpacker = zlib.decompressobj()
        summary = unpacker.decompress(base64.urlsafe_b64decode(packed.removeprefix(PREFIX)), MAX_SUMMARY)
        return INTRODUCTION + summary.decode() if unpacker.eof else None
    except (binascii.Error, zlib.error, UnicodeDecodeError, ValueError):
        return None
