"""Reports of many results do not hold them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from harness import ROOT
from lab.report.making import answer, write_results
from peak import peak, watched

from bridge.lab.result import Cell

CASES, REPEATS = 40, 250
"""Times two variants: 20,000 results."""


def largest(directory: Path, repeats: int) -> int:
    """The most memory, in bytes, that all reports of a run but the page take together."""
    results = directory / f"{repeats}.jsonl"
    cells = (Cell("m", variant, f"c{case}", n) for n in range(repeats) for variant in "ab" for case in range(CASES))
    write_results(results, (answer(cell, "clean", f"{cell.repeat}" * 1500, failed=["values"]) for cell in cells))
    files = [f"--{name}={directory / name}" for name in ("csv", "json", "junit", "markdown")]
    command = [*watched(directory / "peak"), "lab", "report", str(results), *files]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return peak(directory / "peak")


@pytest.mark.deep
def test_twenty_thousand_results_take_little_more_memory_than_two_hundred(tmp_path: Path) -> None:
    more = largest(tmp_path, REPEATS) - largest(tmp_path, 3)
    assert (tmp_path / f"{REPEATS}.jsonl").stat().st_size > 80_000_000
    assert (tmp_path / "csv").read_bytes().count(b"\r\n") == 3 * 2 * CASES + 1
    assert more < 16_000_000, "the cells that were asked, and counts"
