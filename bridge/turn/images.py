"""Images in data URLs: what kind they are and how large, read without decoding them.

Codex passes on PNG, JPEG, WebP and GIF. Anything else, and what it cannot decode, it replaces by a sentence, and the
model answers without having seen it.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from dataclasses import dataclass

from bridge.errors import InvalidRequest

_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True)
class ImageSize:
    """The kind of an image, and its size in pixels."""

    kind: str
    width: int
    height: int


class _Broken(Exception):
    """The data ends or contradicts itself before the image does."""


def inspect_image(url: str) -> ImageSize:
    """Look at a data URL. Raises InvalidRequest for what is not a whole PNG, JPEG, WebP or GIF."""
    head, comma, text = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise _refusal("it is not a data URL with base64 (data:image/png;base64,…)")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _refusal("its base64 cannot be decoded") from None
    try:
        size = _size(data)
    except (_Broken, struct.error, IndexError):
        raise _refusal("its data is damaged or cut off") from None
    if size is None:
        raise _refusal(f"this is {head.removeprefix('data:').removesuffix(';base64')[:64] or 'something else'}")
    if not size.width or not size.height:
        raise _refusal("it has no pixels")
    return size


def _refusal(why: str) -> InvalidRequest:
    return InvalidRequest(
        f"An image cannot be passed on: {why}. Send a PNG, JPEG, WebP or GIF as a data URL.", code="invalid_image"
    )


def _size(data: bytes) -> ImageSize | None:
    if data.startswith(_PNG):
        return _png(data)
    if data.startswith(b"\xff\xd8"):
        return _jpeg(data)
    if data.startswith((b"GIF87a", b"GIF89a")):
        return ImageSize("gif", *struct.unpack_from("<HH", data, 6))
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _webp(data)
    return None


def _png(data: bytes) -> ImageSize:
    """Its chunks up to the end of the pixels, each with its checksum."""
    size, at, pixels = None, len(_PNG), False
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        body, end = at + 4, at + 8 + length
        if kind == b"IHDR":
            size = ImageSize("png", *struct.unpack_from(">II", data, at + 8))
        if zlib.crc32(data[body:end]) != struct.unpack_from(">I", data, end)[0]:
            raise _Broken
        if pixels and kind != b"IDAT":
            break
        pixels = kind == b"IDAT"
        at = end + 4
    if size is None or not (pixels or at < len(data)):
        raise _Broken
    return size


def _jpeg(data: bytes) -> ImageSize:
    """Its segments up to the one that has the size."""
    at = 2
    while True:
        if data[at] != 0xFF:
            raise _Broken
        marker = data[at + 1]
        if marker == 0xFF:  # padding
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 5)
            return ImageSize("jpeg", width, height)
        elif marker in (0xD9, 0xDA):
            raise _Broken
        else:
            at += 2 + struct.unpack_from(">H", data, at + 2)[0]


def _webp(data: bytes) -> ImageSize:
    if struct.unpack_from("<I", data, 4)[0] + 8 > len(data) + 1:
        raise _Broken
    form = data[12:16]
    if form == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return ImageSize("webp", width & 0x3FFF, height & 0x3FFF)
    if form == b"VP8L":
        bits = struct.unpack_from("<I", data, 21)[0]
        return ImageSize("webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if form == b"VP8X":
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
        return ImageSize("webp", width, height)
    raise _Broken
