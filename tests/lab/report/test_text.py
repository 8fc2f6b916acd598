"""The table on a terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.report.golden import check_golden
from lab.report.making import CASES, answer, small_summary
from rich.cells import cell_len

from bridge.lab.report.summary import Summary, summarise
from bridge.lab.report.text import text_lines
from bridge.lab.result import Cell, Result


def lines(summary: Summary, width: int, *, coloured: bool = False) -> list[str]:
    return list(text_lines(summary, width, coloured=coloured))


@pytest.mark.parametrize("width", [80, 120])
def test_the_golden_table(tmp_path: Path, width: int) -> None:
    summary, _ = small_summary(tmp_path / "r")
    found = lines(summary, width)
    assert max(map(len, found)) <= width
    check_golden(f"table-{width}.txt", "".join(f"{line}\n" for line in found).encode())


def test_all_columns_side_by_side_on_a_wide_terminal(tmp_path: Path) -> None:
    summary, _ = small_summary(tmp_path / "r")
    heads = [line.split() for line in lines(summary, 200)[:2]]
    assert heads == [["gpt-5.2-codex", "mini"], ["spec", "short", "native"] * 2]


def test_models_with_a_common_prefix_are_distinguishable() -> None:
    models = ["gpt-5.2-codex", "gpt-5.2-codex-mini", "gpt-5.2-codex-max"]
    results = [answer(Cell(model, "spec", "a", 0), "clean") for model in models]
    head = [line for line in lines(summarise(results, {}), 80) if line.strip()]
    head = head[: next(number for number, line in enumerate(head) if line.startswith("other"))]
    starts = [match.start() for match in re.finditer(r"\S+", head[-1])]
    assert len(starts) == 3, "the variants"
    columns = ["".join(line[start : start + 10].strip() for line in head[:-1]) for start in starts]
    assert columns == models


def test_words_are_coloured(tmp_path: Path) -> None:
    summary, _ = small_summary(tmp_path / "r")
    found = "\n".join(lines(summary, 80, coloured=True))
    for shown in ("32m3/3 PASS", "33m2/3 MIXED ra", "31m0/3 FAIL", "35mERROR e"):
        assert f"\x1b[{shown}" in found


def test_a_clear_difference_is_coloured(tmp_path: Path) -> None:
    results = [
        answer(
            Cell("m", variant, f"case-{number}", 0), "clean", failed=["values"] * (variant == "short" and number < 12)
        )
        for variant in ("spec", "short")
        for number in range(20)
    ]
    summary = summarise(results, {})
    shown = "difference -60.0 points, 95 % [-80.0, -40.0], 20 cases"
    assert f"\x1b[31m{shown}\x1b[0m" in lines(summary, 80, coloured=True)[-1]


def test_no_results(tmp_path: Path) -> None:
    assert lines(summarise([], {}), 80) == ["No results."]


NAMES = st.text(min_size=1, max_size=60)


@given(st.lists(st.tuples(NAMES, NAMES, NAMES), min_size=1, max_size=8), st.integers(40, 240))
def test_any_names_give_lines_of_limited_width_without_controls(names: list[tuple[str, str, str]], width: int) -> None:
    results: list[Result] = [answer(Cell(*name, 0), "clean") for name in dict.fromkeys(names)]
    for line in lines(summarise(results, CASES), width):
        assert cell_len(line) <= width
        assert not any(char < " " or char in "\x7f\x85\x9b\u202e\u2028" for char in line)
