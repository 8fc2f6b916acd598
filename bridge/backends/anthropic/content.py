"""Texts and images as blocks of content."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from bridge.errors import InvalidRequest
from bridge.turn.items import Image, Message, Part, Text

Block = dict[str, Any]

_DATA_URL = re.compile(r"data:(image/[a-z+.-]+)(?:;[^;,]*)*;base64,(.*)", re.IGNORECASE | re.DOTALL)
_IMAGES = {
    "image/jpeg": "image/jpeg",
    "image/jpg": "image/jpeg",
    "image/png": "image/png",
    "image/gif": "image/gif",
    "image/webp": "image/webp",
}
_SPACE = re.compile(r"\s+")


def text_block(text: str) -> Block:
    """A text; it must not be blank."""
    return {"type": "text", "text": text}


def blocks_of(message: Message) -> list[Block]:
    """What a message says. Blank texts are left out, since the API refuses them.

    A system or developer message in the middle becomes the user's, and says so. An assistant can show no images here.
    """
    if message.role == "assistant":
        return [
            text_block("[image]" if isinstance(part, Image) else part.text) for part in message.parts if _says(part)
        ]
    blocks = _blocks(message.parts)
    if message.role == "user" or not blocks:
        return blocks
    if all(block["type"] == "text" for block in blocks):
        return [text_block("\n".join(["<system-message>", *(block["text"] for block in blocks), "</system-message>"]))]
    return [text_block("<system-message>"), *blocks, text_block("</system-message>")]


def result_content(parts: Sequence[Part]) -> str | list[Block]:
    """What a function gave back: a text as it is, anything with images as blocks."""
    if all(isinstance(part, Text) for part in parts):
        return "\n".join(part.text for part in parts if isinstance(part, Text))
    return _blocks(parts)


def _blocks(parts: Sequence[Part]) -> list[Block]:
    return [_image(part) if isinstance(part, Image) else text_block(part.text) for part in parts if _says(part)]


def _says(part: Part) -> bool:
    return isinstance(part, Image) or bool(part.text.strip())


def _image(image: Image) -> Block:
    if image.url[:8].lower() == "https://":
        return {"type": "image", "source": {"type": "url", "url": image.url}}
    found = _DATA_URL.fullmatch(image.url.strip())
    if found is None:
        raise InvalidRequest(
            "An image must be a data URL with base64, or an https URL.", param="input", code="invalid_image_url"
        )
    media_type = _IMAGES.get(found[1].lower())
    if media_type is None:
        raise InvalidRequest(
            f"Images of type {found[1][:40]} are not supported; use JPEG, PNG, GIF or WebP.",
            param="input",
            code="unsupported_image_type",
        )
    data = _SPACE.sub("", found[2])
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}
