"""Keeping what a backend says that it sends and gets."""

from __future__ import annotations

from collections.abc import Callable


def noted(sent: list[bytes], traced: list[bytes]) -> Callable[[str, str, bytes], None]:
    """A backend's `record` that appends to these lists."""
    return lambda req_id, direction, data: (sent if direction == "out" else traced).append(data)
