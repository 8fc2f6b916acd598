"""`{"$repeat": ["ab", 10000]}` stands for a long text. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bridge.lab.suite.faults import Place

REPEAT = "$repeat"
MAX_TEXT = 1_000_000
MAX_TOTAL = 20_000_000
"""The characters of all such texts of one file."""


class Repeats:
    """Writes the repeated texts of one file out; what is wrong with one goes to `report`."""

    def __init__(self, report: Callable[[Place, str], None]) -> None:
        self._report = report
        self._left = MAX_TOTAL

    def expand(self, value: Any, place: Place) -> Any:
        """The value at `place` with every repeated text written out."""
        if isinstance(value, list):
            return [self.expand(member, (*place, index)) for index, member in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if REPEAT in value:
            return self._text(value, place)
        return {name: self.expand(member, (*place, name)) for name, member in value.items()}

    def _text(self, value: dict[str, Any], place: Place) -> str:
        match value:
            case {"$repeat": [str(text), int(times)]} if len(value) == 1 and times is not True and times >= 0:
                size = len(text) * times
                self._left -= size
                if size <= MAX_TEXT and self._left >= 0:
                    return text * times
                self._report(place, f"{REPEAT} makes at most {MAX_TEXT:,} characters, and {MAX_TOTAL:,} in one file")
            case _:
                self._report(place, f"{REPEAT} stands alone and takes a text and how often it is written")
        return "?"
