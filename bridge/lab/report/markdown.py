"""The report as Markdown, for a page or a comment on a change: figures, comparisons, all cells. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from bridge.lab.report.figures import figures
from bridge.lab.report.summary import Column, Summary
from bridge.lab.report.words import MARKS, interval, marks_of
from bridge.lab.stats import describe

_SPECIAL = re.compile(r"[\\`*_\[\]<>#|~@&$]|^[-+=]|(?<=:)//|(?<=www)\.")
_HOSTILE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
_NAME = re.compile(r"[A-Za-z0-9]+(?:[_-][A-Za-z0-9]+)*")
"""Names in which an underscore is no emphasis."""


def markdown_lines(summary: Summary) -> Iterator[str]:
    """The report, line by line."""
    yield "# Tool calls" + (f": {escape(summary.suite)}" if summary.suite else "")
    yield ""
    if not summary.columns:
        yield "There are no results."
        return
    if summary.missed:
        yield "## Missed"
        yield ""
        yield from (f"* {escape(sentence)}" for sentence in summary.missed)
        yield ""
    yield from _figures(summary)
    if summary.compared:
        yield "## Compared case by case"
        yield ""
        for model, variant, first, comparison in summary.compared:
            yield f"* {escape(model)}, {escape(variant)} against {escape(first)}: {describe(comparison)}"
        yield ""
    yield from _cells(summary)
    for sentence in summary.told:
        yield ""
        yield escape(sentence)


def escape(text: str) -> str:
    """A text that Markdown takes for nothing but text, on one line; nobody is mentioned, and nothing is a link."""
    text = _HOSTILE.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
    if _NAME.fullmatch(text):
        return text
    # As character references, which also HTML within Markdown leaves alone.
    return _SPECIAL.sub(lambda found: "".join(f"&#{ord(each)};" for each in found[0]), text)


def _figures(summary: Summary) -> Iterator[str]:
    yield "## Figures"
    yield ""
    yield from _head(summary, "")
    for group in figures(summary):
        for label, texts in group.rows:
            yield _row(label if group.heading == "All cases" else f"{group.heading}: {escape(label)}", texts)
    yield ""


def _cells(summary: Summary) -> Iterator[str]:
    yield "## Cases"
    yield ""
    seen: set[str] = set()
    yield from _head(summary, "case")
    category = None
    for row in summary.rows:
        if row.category != category:
            category = row.category
            yield _row(f"**{escape(category)}**", [""] * len(summary.columns))
        texts = []
        for column in summary.columns:
            count = summary.cell(row, column)
            marks = marks_of(count, row)
            seen.update(marks)
            told = " ".join(f"{letter}{number}" for letter, number in marks.items())
            share = f"{count.passed}/{count.scored} " if count.scored else ""
            sure = f" ({interval(summary.cell_rates(count).interval)})" if count.scored else ""
            texts.append("–" if count.word == "-" else f"{share}{count.word}{sure} {told}".rstrip())
        yield _row(escape(row.case), texts)
    yield ""
    yield "In brackets: the 95 % interval (Wilson) of what passed."
    if seen:
        yield f"Marks: {'; '.join(f'{letter} {words}' for letter, words in MARKS.items() if letter in seen)}."


def _head(summary: Summary, label: str) -> Iterator[str]:
    yield _row(label, [_title(column) for column in summary.columns])
    yield "|".join(("", "---", *("---" for _ in summary.columns), ""))


def _title(column: Column) -> str:
    return f"{escape(column.model)} {escape(column.variant)}"


def _row(label: str, texts: Sequence[str]) -> str:
    return f"| {' | '.join((label, *texts))} |"
