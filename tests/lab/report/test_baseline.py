"""What got worse since an earlier report."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import pytest
from lab.report.making import answer, trouble

from bridge.errors import UsageError
from bridge.lab.report import Baseline, changes, nothing_compared, read_baseline, regressions
from bridge.lab.report.exports import json_report
from bridge.lab.report.summary import Summary, summarise
from bridge.lab.result import Cell, Result

PASSED = {"PASS": 2, "MIXED": 1, "FAIL": 0}
SHARES = ("0/1", "1/1", "0/5", "1/5", "4/5", "5/5", "2/10", "ERROR")


def results(words: dict[str, str], variant: str = "spec") -> Iterable[Result]:
    """Two samples of each case, which come to this word."""
    for name, word in words.items():
        for repeat in range(2):
            cell = Cell("m", variant, name, repeat)
            if word == "ERROR":
                yield trouble(cell)
            else:
                yield answer(cell, "clean", failed=[] if repeat < PASSED[word] else ["values"])


def summary_of(words: dict[str, str], variant: str = "spec") -> Summary:
    return summarise(list(results(words, variant)), {})


def kept(path: Path, words: dict[str, str], variant: str = "spec") -> Baseline:
    path.write_bytes(json_report(summary_of(words, variant)))
    return read_baseline(path)


def one_case(share: str) -> Summary:
    """A case of which so many samples of so many pass."""
    if share == "ERROR":
        return summarise([trouble(Cell("m", "spec", "a", 0))], {})
    passed, scored = map(int, share.split("/"))
    cells = [Cell("m", "spec", "a", number) for number in range(scored)]
    return summarise([answer(cell, "clean", failed=["values"] * (cell.repeat >= passed)) for cell in cells], {})


@pytest.mark.parametrize("was", SHARES)
@pytest.mark.parametrize("now", SHARES)
def test_any_lower_share_is_a_regression(tmp_path: Path, was: str, now: str) -> None:
    (tmp_path / "b.json").write_bytes(json_report(one_case(was)))
    baseline, summary = read_baseline(tmp_path / "b.json"), one_case(now)
    known = "ERROR" not in (was, now)
    worse = known and Fraction(now) < Fraction(was)
    assert list(regressions(summary, baseline)) == ([f"a (m, spec) was {was} and is {now}"] if worse else [])
    assert (nothing_compared(summary, baseline) is None) == known


def test_nothing_to_compare_names_the_baseline(tmp_path: Path) -> None:
    baseline = kept(tmp_path / "b.json", {"a": "PASS"})
    assert nothing_compared(summary_of({"a": "FAIL", "b": "PASS"}), baseline) is None
    for other in (summary_of({"a": "FAIL"}, "short"), summary_of({"b": "FAIL"}), summarise([], {})):
        assert nothing_compared(other, baseline) == (
            "no case can be compared with the baseline of m spec; choose its model, variant and cases"
        )


def test_what_cannot_be_compared_is_reported(tmp_path: Path) -> None:
    baseline = kept(tmp_path / "b.json", {"a": "PASS", "gone": "PASS", "silent": "PASS"})
    now = summary_of({"a": "PASS", "new": "FAIL", "silent": "ERROR"})
    assert list(regressions(now, baseline)) == []
    assert list(changes(now, baseline)) == [
        "Not in the baseline: new.",
        "Only in the baseline: gone.",
        "m spec has no scored answer to compare for silent.",
    ]


def test_new_and_missing_columns_are_reported(tmp_path: Path) -> None:
    found = list(changes(summary_of({"a": "FAIL"}, "short"), kept(tmp_path / "b.json", {"a": "PASS"}, "spec")))
    assert found == ["m short is not in the baseline.", "m spec is in the baseline only."]


def test_many_names_are_cut() -> None:
    now = summary_of({f"c{number}": "PASS" for number in range(12)})
    assert list(changes(now, {}))[1] == "Not in the baseline: c0, c1, c2, c3, c4, c5, c6, c7 and 4 more."


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"report": "1"}', b'{"report": 1}', b'{"report": 1, "columns": [], "cases": [{"id": "a"}]}',
     b'{"report": 1, "columns": 5, "cases": []}',
     b'{"report": 1, "columns": [], "cases": [{"id": "a", "cells": [{"model": "m", "variant": "v", "word": "PASS"}]}]}',
     b'{"lab": 1, "suite": "x"}\n', b"\xff"],
)  # fmt: skip
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "b.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"b\.json: not a report"):
        read_baseline(tmp_path / "b.json")


def test_a_missing_or_newer_baseline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_baseline(tmp_path / "none.json")
    (tmp_path / "b.json").write_bytes(b'{"report": 2}')
    with pytest.raises(UsageError, match="newer version"):
        read_baseline(tmp_path / "b.json")
