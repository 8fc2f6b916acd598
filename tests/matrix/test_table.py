"""The table of docs/backends.md is what the battery says of itself; scripts/backends-matrix makes it of a run."""

from __future__ import annotations

import re

from harness import ROOT
from matrix import test_battery
from matrix.cells import BACKENDS, CASES, FAULTS, GAPS, PROTOCOLS, all_cells, battery, declared, gap_of, render
from matrix.document import PAGE, table_in


def test_the_page_has_the_table_of_the_battery() -> None:
    """When this fails, run scripts/backends-matrix."""
    assert table_in(PAGE.read_text()) == render(declared())


def test_every_cell_is_a_test_or_has_a_reason() -> None:
    """Nothing is left out in silence, and no rule is about nothing."""
    cells = list(all_cells())
    assert len(cells) == len(BACKENDS) * len(PROTOCOLS) * len(CASES)
    assert set(battery()) == {cell for cell in cells if gap_of(cell) is None}
    assert {gap_of(cell) for cell in cells} - {None} == {rule.reason for rule in GAPS}
    for rule in FAULTS:
        assert any(rule.covers(cell) for cell in battery()), rule
    for case in CASES:
        assert callable(getattr(test_battery, case))


def test_a_cell_that_fails_is_seen_in_the_table() -> None:
    """Its protocol's letter is missing, and a note says why."""
    outcomes = declared()
    cell = battery()[0]
    outcomes[cell] = "failed"
    (row,) = (line for line in render(outcomes).split("\n") if line.startswith(f"| `{BACKENDS[cell.backend]}` "))
    field = row.split(" | ")[1]
    assert re.fullmatch(r"\w+ <sup>1</sup>", field)
    assert PROTOCOLS[cell.protocol] not in field.split()[0]
    assert "\n1. Failed in the last run of the battery." in render(outcomes)


def test_the_page_explains_every_letter() -> None:
    """And names every backend and every preset."""
    from bridge.protocols.chat.presets import PRESETS

    text = PAGE.read_text()
    for letter in PROTOCOLS.values():
        assert re.search(rf"^\| {letter} \|", text, re.M), letter
    for name in (*BACKENDS.values(), *PRESETS):
        assert f"`{name}`" in text, name
    assert PAGE.is_relative_to(ROOT)
