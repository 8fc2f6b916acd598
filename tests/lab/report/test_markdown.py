"""The report as Markdown."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from lab.report.golden import check_golden
from lab.report.making import answer, small_summary

from bridge.lab.report.summary import summarise
from bridge.lab.report.text import escape, markdown_lines
from bridge.lab.result import Cell


def test_the_golden_report(tmp_path: Path) -> None:
    summary, _ = small_summary(tmp_path / "r")
    check_golden("report.md", "".join(f"{line}\n" for line in markdown_lines(summary)).encode())


def test_what_was_missed_comes_first(tmp_path: Path) -> None:
    summary, _ = small_summary(tmp_path / "r")
    found = list(markdown_lines(replace(summary, missed=("Missed: m spec: 1 of 2 (50.0 %) passed.",))))
    assert found[2:5] == ["## Missed", "", "* Missed: m spec: 1 of 2 (50.0 %) passed."]


def test_no_results() -> None:
    assert list(markdown_lines(summarise([], {})))[-1] == "No results."


@given(st.text(max_size=80))
def test_text_is_never_markdown(text: str) -> None:
    found = escape(text)
    assert not re.search(r"[\x00-\x1f\x7f\u2028\u202e]", found)
    bare = re.sub(r"&#\d+;", "", found)
    assert not re.search(r"[\\`*\[\]<>#|~@&$]|://|www\.", bare)
    assert "_" not in bare or re.fullmatch(r"[A-Za-z0-9]+([_-][A-Za-z0-9]+)*", bare)
    if text.isprintable():
        assert unescape(found) == text


def test_a_case_cannot_add_columns_or_links() -> None:
    cell = Cell("m|x", "<img src=x>", "a | b\n# c [d](http://e) @everyone", 0)
    found = list(markdown_lines(summarise([answer(cell, "clean")], {})))
    rows = [line for line in found if line.startswith("|")]
    assert {line.count("|") for line in rows} == {3}
    assert not any(mark in "\n".join(found) for mark in ("<img", "](", "://", "@everyone"))
