"""What an event of the load says: its number and its time in five letters, as many as a model's word has.

The answers last for minutes, and their text is kept until their end: longer stamps would be what is measured.
"""

from __future__ import annotations

import itertools
import string

_LETTERS = (string.digits + string.ascii_letters).encode()
NUMBERS = [bytes(code) for code in itertools.product(_LETTERS, repeat=3)]
TIMES = [bytes(code) for code in itertools.product(_LETTERS, repeat=2)]
TICK = 0.0002
ROUND = len(TIMES) * TICK
"""Seconds after which the times repeat."""


def stamp(number: int, now: float) -> bytes:
    """The text of an event."""
    return NUMBERS[number] + TIMES[int(now / TICK) % len(TIMES)]
