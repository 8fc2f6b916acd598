"""What got worse since an earlier report."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from lab.report.making import answer, trouble

from bridge.errors import UsageError
from bridge.lab.report.baseline import Baseline, changes, read_baseline, regressions
from bridge.lab.report.json import json_report
from bridge.lab.report.summary import Summary, summarise
from bridge.lab.result import Cell, Result

PASSED = {"PASS": 2, "MIXED": 1, "FAIL": 0}
ALL = ("PASS", "MIXED", "FAIL", "ERROR")


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


@pytest.mark.parametrize("was", ALL)
@pytest.mark.parametrize("now", ALL)
def test_a_word_that_got_worse_is_a_regression(tmp_path: Path, was: str, now: str) -> None:
    found = list(regressions(summary_of({"a": now}), kept(tmp_path / "b.json", {"a": was})))
    worse = (was, now) in {("PASS", "MIXED"), ("PASS", "FAIL"), ("MIXED", "FAIL")}
    assert found == ([f"a (m, spec) was {was} and is {now}"] if worse else [])


def test_what_cannot_be_compared_is_told(tmp_path: Path) -> None:
    baseline = kept(tmp_path / "b.json", {"a": "PASS", "gone": "PASS", "silent": "PASS"})
    now = summary_of({"a": "PASS", "new": "FAIL", "silent": "ERROR"})
    assert list(regressions(now, baseline)) == []
    assert list(changes(now, baseline)) == [
        "Not in the baseline: new.",
        "In the baseline, but not in these results: gone.",
        "m spec has no answer to compare for silent.",
    ]


def test_columns_that_are_new_or_gone_are_told(tmp_path: Path) -> None:
    found = list(changes(summary_of({"a": "FAIL"}, "short"), kept(tmp_path / "b.json", {"a": "PASS"}, "spec")))
    assert found == ["m short is not in the baseline.", "m spec is in the baseline, but not in these results."]


def test_many_names_are_cut() -> None:
    now = summary_of({f"c{number}": "PASS" for number in range(12)})
    assert list(changes(now, Baseline({})))[1] == "Not in the baseline: c0, c1, c2, c3, c4, c5, c6, c7 and 4 more."


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"report": "1"}', b'{"report": 1}', b'{"report": 1, "columns": [], "cases": [{"id": "a"}]}',
     b'{"report": 1, "columns": 5, "cases": []}', b'{"lab": 1, "suite": "x"}\n', b"\xff"],
)  # fmt: skip
def test_what_is_no_baseline_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "b.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"b\.json: this is no report"):
        read_baseline(tmp_path / "b.json")


def test_a_baseline_that_is_not_there_or_of_a_later_program(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_baseline(tmp_path / "none.json")
    (tmp_path / "b.json").write_bytes(b'{"report": 2}')
    with pytest.raises(UsageError, match="newer program"):
        read_baseline(tmp_path / "b.json")
