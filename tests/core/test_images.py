"""Images in data URLs: what Codex would replace by a sentence is refused."""

from __future__ import annotations

import base64
import struct
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.images import ImageSize, inspect_image
from bridge.errors import InvalidRequest


def url(data: bytes, mime: str = "image/png") -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int = 3, height: int = 2, before: bytes = b"", after: bytes = chunk(b"IEND", b"")) -> bytes:
    """A grey PNG."""
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"\0" * (width + 1) * height)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + before + chunk(b"IDAT", pixels) + after


JPEG = bytes.fromhex("ffd8ffe000104a46494600010100000100010000ffc0000b080002000301011100ffda")
GIF = b"GIF89a" + struct.pack("<HH", 3, 2) + b"\0" * 8
WEBP_LOSSLESS = b"RIFF" + struct.pack("<I", 24) + b"WEBPVP8L" + struct.pack("<IBI", 5, 0x2F, 2 | 1 << 14) + b"\0" * 7
WEBP_LOSSY = b"RIFF" + struct.pack("<I", 22) + b"WEBPVP8 " + struct.pack("<I", 10) + b"\0\0\0\x9d\1\x2a" + b"\3\0\2\0"
WEBP_EXTENDED = (
    b"RIFF"
    + struct.pack("<I", 40)
    + b"WEBPVP8X"
    + struct.pack("<I", 10)
    + b"\0" * 4
    + b"\2\0\0\1\0\0"
    + WEBP_LOSSY[12:]
)
DAMAGED_COMMENT = chunk(b"tEXt", b"a\0b")[:-1] + b"?"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (png(), "png"),
        (JPEG, "jpeg"),
        (GIF, "gif"),
        (WEBP_LOSSLESS, "webp"),
        (WEBP_EXTENDED, "webp"),
        (WEBP_LOSSY, "webp"),
    ],
    ids=["png", "jpeg", "gif", "lossless webp", "extended webp", "lossy webp"],
)
def test_kind_and_size(data: bytes, kind: str) -> None:
    """By the data itself: what the URL calls it does not count, for Codex neither."""
    assert inspect_image(url(data)) == ImageSize(kind, 3, 2)
    assert inspect_image(url(data, "image/webp")) == ImageSize(kind, 3, 2)


@pytest.mark.parametrize(
    "data",
    [
        png(before=DAMAGED_COMMENT),
        png(after=DAMAGED_COMMENT),
        png(after=chunk(b"IEND", b"")[:-1] + b"?"),
        png() + b"more",
        JPEG[:20] + b"\0\0abc" + JPEG[20:],
        JPEG[:2] + b"\xff\xff" + JPEG[2:],
        GIF[:6] + b"\0" * 4 + GIF[10:],
        WEBP_LOSSY[:4] + b"\xff\xff\xff\xff" + WEBP_LOSSY[8:],
    ],
    ids=[
        "PNG, damaged comment",
        "PNG, damaged comment after the pixels",
        "PNG, damaged end",
        "PNG, trailing data",
        "JPEG, bytes between segments",
        "JPEG, fill bytes",
        "GIF, screen without a size",
        "WebP, wrong size of the file",
    ],
)
def test_damage_that_codex_overlooks_is_not_refused(data: bytes) -> None:
    """Each of these reaches the model."""
    inspect_image(url(data))


@pytest.mark.parametrize(
    "head", ["data:image/png;BASE64", "DATA:image/png;base64", "data:image/png;base64;name=x", "data:;base64"]
)
def test_the_spellings_of_a_data_url(head: str) -> None:
    """Codex reads all of them."""
    assert inspect_image(f"{head},{base64.b64encode(png()).decode()}").kind == "png"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (url(b"BM" + b"\0" * 60, "image/bmp"), "this is image/bmp"),
        (url(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"), r"this is image/svg\+xml"),
        (url(b""), "this is image/png"),
        (url(png()[:45]), "damaged or cut off"),
        (url(png()[:40] + b"\xff" + png()[41:]), "damaged or cut off"),
        (url(png(after=b"")), "damaged or cut off"),
        (url(JPEG[:12]), "damaged or cut off"),
        (url(GIF[:8]), "damaged or cut off"),
        (url(WEBP_LOSSY[:20]), "damaged or cut off"),
        (url(png(0)), "no pixels"),
        ("data:image/png;base64,!!!!", "base64"),
        ("data:image/png;base64,AAA", "base64"),
        ("data:image/png;base64,AB==", "base64"),
        ("data:image/png,abc", "not a data URL"),
        ("data:image/png;base64", "not a data URL"),
    ],
)
def test_what_is_refused_and_why(given: str, why: str) -> None:
    """The reason and the remedy."""
    with pytest.raises(InvalidRequest, match=why) as refused:
        inspect_image(given)
    assert refused.value.code == "invalid_image"
    assert "Send a PNG, JPEG, WebP or GIF" in refused.value.message


@given(st.binary(max_size=80), st.sampled_from([b"", png()[:33], JPEG[:20], GIF[:6], WEBP_LOSSY[:16]]))
def test_any_bytes_are_an_image_or_refused(data: bytes, beginning: bytes) -> None:
    """Nothing else comes of what a client sends."""
    with suppress(InvalidRequest):
        size = inspect_image(url(beginning + data))
        assert min(size.width, size.height) > 0
