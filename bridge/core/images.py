"""Images and other files in data URLs: what kind they are and how large, read without decoding them.

Codex passes on PNG, JPEG, WebP and GIF. It replaces anything else, and what it cannot decode, with a
sentence, and the model answers without having seen the image.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from dataclasses import dataclass

from bridge.core.items import Document, Image, Text
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
    """Read the kind and size of a data URL's image. Raises InvalidRequest for all but whole PNG, JPEG, WebP and GIF."""
    head, comma, text = url.partition(",")
    mime, *parameters = head[len("data:") :].split(";")
    if not comma or "base64" not in map(str.lower, (mime, *parameters)):
        raise _refusal("it is not a data URL with base64 (data:image/png;base64,…)")
    data = decode_base64(text)
    if data is None:
        raise _refusal("its base64 cannot be decoded")
    try:
        size = _size(data)
    except (_Broken, struct.error, IndexError):
        raise _refusal("its data is damaged or cut off") from None
    if size is None:
        raise _refusal(f"this is {mime[:64] or 'something else'}")
    if not size.width or not size.height:
        raise _refusal("it has no pixels")
    return size


def decode_base64(text: str) -> bytes | None:
    """The bytes of base64 with its padding and without anything else in it; None where it is not that."""
    try:
        data = base64.b64decode(text, validate=True)
        # Unlike Python, Codex refuses base64 whose last character has bits that belong to no byte.
        whole = base64.b64encode(base64.b64decode(text[-4:])).decode() == text[-4:]
    except (binascii.Error, ValueError):
        return None
    return data if whole else None


def _refusal(why: str) -> InvalidRequest:
    return InvalidRequest(
        f"An image cannot be passed on: {why}. Send a PNG, JPEG, WebP or GIF as a data URL.", code="invalid_image"
    )


def _size(data: bytes) -> ImageSize | None:
    if data.startswith(_PNG):
        return _png(data)
    if data.startswith(b"\xff\xd8\xff"):
        return _jpeg(data)
    if data.startswith((b"GIF87a", b"GIF89a")):
        width, height = struct.unpack_from("<HH", data, 6)
        # Some writers leave the size of the screen at 0; the frames have sizes of their own.
        return ImageSize("gif", width or 1, height or 1)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _webp(data)
    return None


def _png(data: bytes) -> ImageSize:
    """Its chunks up to the one after the pixels. As in Codex, checksums matter only in the chunks that decoders need.

    Their names begin with a capital letter.
    """
    size, at, pixels = None, len(_PNG), False
    while True:
        length, kind = struct.unpack_from(">I4s", data, at)
        if pixels and kind != b"IDAT":
            break
        body, end = at + 4, at + 8 + length
        if kind == b"IHDR":
            size = ImageSize("png", *struct.unpack_from(">II", data, at + 8))
        checksum = struct.unpack_from(">I", data, end)[0]
        if kind[:1].isupper() and zlib.crc32(data[body:end]) != checksum:
            raise _Broken
        pixels = kind == b"IDAT"
        at = end + 4
    if size is None:
        raise _Broken
    return size


def _jpeg(data: bytes) -> ImageSize:
    """Its segments up to the one that has the size."""
    at = 2
    while True:
        # Decoders pass over bytes between two segments that belong to neither.
        at = data.find(b"\xff", at)
        if at < 0:
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
    """Its chunks up to the first with pixels. The size of the whole file, which stands first, is not always right."""
    size, at = None, 12
    while True:
        kind, length = struct.unpack_from("<4sI", data, at)
        body = at + 8
        if kind == b"VP8X":
            width, height = (int.from_bytes(data[start : start + 3], "little") + 1 for start in (body + 4, body + 7))
            size = ImageSize("webp", width, height)
        elif kind in (b"VP8 ", b"VP8L", b"ANMF"):
            if body + length > len(data) + 1:  # the last byte may be padding
                raise _Broken
            return size or _webp_frame(kind, data, body)
        at = body + length + length % 2


def _webp_frame(kind: bytes, data: bytes, at: int) -> ImageSize:
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, at + 6)
        return ImageSize("webp", width & 0x3FFF, height & 0x3FFF)
    bits = struct.unpack_from("<I", data, at + 1)[0]
    return ImageSize("webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)


# Documents: a text is passed on as text, which every model reads. Anything else only its provider can open.

PDF = "application/pdf"
_TEXTS = ("application/json", "application/xml", "application/yaml", "application/x-yaml", "application/javascript")


def open_document(media_type: str, data: str, name: str | None = None) -> Text | Image | Document:
    """What a file of this type is for a model; `data` is its base64. Raises ValueError for anything else."""
    kind = media_type.partition(";")[0].strip().lower()
    if kind.startswith("image/"):
        return Image(f"data:{kind};base64,{data}")
    content = decode_base64(data)
    if content is None or "/" not in kind:
        raise ValueError(data)
    if kind.startswith("text/") or kind in _TEXTS:
        text = content.decode()
        return Text(text if name is None else f"{name}:\n{text}")
    return Document(f"data:{kind};base64,{data}", name)


def document_refusal(document: Document, reader: str, remedy: str = "") -> InvalidRequest:
    """The error for a document that `reader` cannot read."""
    about = f" {document.name[:100]!r}" if document.name else ""
    remedy = remedy or "Send its text, or its pages as images, or use a model whose provider reads documents."
    return InvalidRequest(
        f"The document{about} ({document.media_type or 'a URL'}) cannot be passed on: {reader} does not read it. "
        f"{remedy}",
        code="unsupported_document",
    )
