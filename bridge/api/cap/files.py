"""The `files` of a request as parts of its message. Nothing is fetched, and nothing is read from this machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from bridge.errors import InvalidRequest
from bridge.turn.images import decode_base64
from bridge.turn.items import Image

MAX_FILES = 32
MAX_URL = 8192
MAX_DATA_URL = 20 * 1024 * 1024

_IMAGE_DATA = re.compile(r"data:image/[a-z0-9][a-z0-9.+-]{0,63};base64,", re.IGNORECASE)
_IMAGE_NAME = re.compile(r"\.(?:png|jpe?g|gif|webp|bmp|tiff?|heic|heif|avif)", re.IGNORECASE)
_ODD = re.compile(r"[\x00-\x20\x7f]")


def read_files(files: Sequence[str]) -> tuple[Image, ...]:
    """Images, in order: data URLs as they are, addresses for the provider to look at.

    Raises InvalidRequest, which names the first file that is neither.
    """
    if len(files) > MAX_FILES:
        raise InvalidRequest(
            f"A request has at most {MAX_FILES} files.", param="payload.files", code="too_many_files", http_status=422
        )
    return tuple(Image(_checked(file, index)) for index, file in enumerate(files))


def _checked(file: str, index: int) -> str:
    if file[:5].lower() == "data:":
        head = _IMAGE_DATA.match(file)
        if head is None:
            raise _unsupported(index, "a data URL must hold an image in base64 (data:image/png;base64,…)")
        if len(file) > MAX_DATA_URL:
            raise _unsupported(index, f"it is longer than {MAX_DATA_URL} characters")
        if not decode_base64(file[head.end() :]):
            raise _unsupported(index, "its base64 is empty or cannot be decoded")
        return file
    if len(file) > MAX_URL:
        raise _unsupported(index, f"it is longer than {MAX_URL} characters")
    scheme, _, rest = file.partition("://")
    if scheme.lower() not in ("http", "https") or not rest:
        raise _unsupported(index, "only images are taken, as a data URL or as an http(s) address")
    try:
        parts = urlsplit(file)
        host = parts.hostname
    except ValueError:
        host = None
    if not host or _ODD.search(file) or "@" in parts.netloc:
        raise _unsupported(index, "this is no plain address")
    if not _IMAGE_NAME.search(parts.path[-6:]):
        raise _unsupported(index, "an address must end like an image (.png, .jpg, .webp, …)")
    return file


def _unsupported(index: int, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"The file at index {index} cannot be used: {why}.",
        param=f"payload.files[{index}]",
        code="unsupported_file",
        http_status=422,
    )
