"""An input in pieces, as its first byte wants them: the same input is always cut in the same way."""

from __future__ import annotations

from typing import TypeVar

AnyText = TypeVar("AnyText", str, bytes)


def choice(data: bytes) -> int:
    """The number that chooses; 0 for no input."""
    return data[0] if data else 0


def cut(text: AnyText, number: int, unit: int = 1) -> list[AnyText]:
    """Pieces of 1 to 15 times `unit`, or the whole in one."""
    size = number % 16 * unit or len(text) or 1
    return [text[start : start + size] for start in range(0, len(text), size)]
