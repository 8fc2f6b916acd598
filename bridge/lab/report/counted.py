"""The results of a file that count: each cell once, read anew as often as they are needed, one at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from sys import intern
from typing import NamedTuple

from bridge.lab.result import Cell, Result, ResultFile


class Only(NamedTuple):
    """What is wanted of a file; of a kind that names nothing, everything."""

    cases: Collection[str] = ()
    variants: Collection[str] = ()
    models: Collection[str] = ()

    def takes(self, cell: Cell) -> bool:
        """Whether a cell is wanted."""
        return (
            (not self.cases or cell.case in self.cases)
            and (not self.variants or cell.variant in self.variants)
            and (not self.models or cell.model in self.models)
        )


ALL = Only()


class CountedResults:
    """Iterates over results in the order of their file.

    Of a cell that was asked again the last result counts, and an error only while there is nothing better.
    Raises ConfigError for what is no file of results.
    """

    def __init__(self, file: ResultFile, only: Only = ALL) -> None:
        self._file = file
        self._only = only
        self._replaced: set[int] = set()
        self.left_out = 0
        """Results that are not wanted."""
        unread = file.unread
        self._look()
        self.unread = file.unread - unread
        """Lines that are no results."""

    def __iter__(self) -> Iterator[Result]:
        for place, result in enumerate(self._file):
            if place not in self._replaced:
                yield result

    def _look(self) -> None:
        """Find the results that do not count. Only places are kept, and for each cell one."""
        best: dict[Cell, tuple[int, bool]] = {}
        for place, result in enumerate(self._file):
            model, variant, case, repeat = result.cell
            if not self._only.takes(result.cell):
                self._replaced.add(place)
                self.left_out += 1
                continue
            # The same few names on every line: kept once.
            cell = Cell(intern(model), intern(variant), intern(case), repeat)
            scored = result.status == "scored"
            known, known_scored = best.get(cell, (-1, False))
            if known_scored and not scored:
                self._replaced.add(place)
                continue
            if known >= 0:
                self._replaced.add(known)
            best[cell] = (place, scored)
