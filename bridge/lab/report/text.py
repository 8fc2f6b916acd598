"""The report for a terminal: cases by columns, the figures of each column, and how variants compare. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap
from typing import Protocol

from bridge.lab.report.figures import NOTHING, figures
from bridge.lab.report.summary import Column, Row, Summary
from bridge.lab.report.words import MARKS, marks_of
from bridge.lab.stats import describe
from bridge.lab.table import Count

COLOURS = {"PASS": "green", "MIXED": "yellow", "FAIL": "red", "ERROR": "magenta", "-": "dim"}
ROOMY = 100
"""From this width on, marks tell how often."""
NARROWEST, WIDEST = 9, 20
"""Of a column of the table."""
HIGHEST = 6
"""Lines that a name above a column takes."""
SHORTEST = 26
"""Of the names before them; figures have names that long."""


class Fit(Protocol):
    """Makes a text exactly so wide, on one line, with nothing in it that a terminal would obey."""

    def __call__(self, text: str, width: int, *, right: bool = False) -> str:
        """The text, cut or filled."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """What is written on: its width, and how text is made fit for it."""

    width: int
    fit: Fit
    one_line: Callable[[str], str]
    style: Callable[..., str] = lambda text, *names: text


def text_lines(summary: Summary, sheet: Sheet) -> Iterator[str]:
    """The report, line by line; no line is wider than the sheet."""
    if not summary.columns:
        yield "There are no results."
        return
    for columns in _chunks(summary, sheet):
        yield from _table(summary, sheet, columns)
        yield ""
    yield from _legend(summary, sheet)
    if summary.compared:
        yield ""
        yield from _comparisons(summary, sheet)
    for sentence in summary.told:
        yield from _wrapped(f"Note: {sentence}", sheet)


# The table


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns that stand side by side, each `width` wide, behind the names."""

    chosen: Sequence[Column]
    places: Sequence[int]
    names: int
    width: int


def _chunks(summary: Summary, sheet: Sheet) -> Iterator[_Columns]:
    """As many columns as there is room for, then the others below; a model's stay together where they can."""
    widest = min(WIDEST, max(NARROWEST, sheet.width - SHORTEST - 2))
    width = min(widest, max(NARROWEST, *map(len, _everything(summary, sheet))))
    room = max(1, (sheet.width - SHORTEST) // (width + 2))
    longest = max((len(row.case) + 2 for row in summary.rows), default=0)
    # The names take what the columns leave.
    names = max(SHORTEST, min(longest, sheet.width - min(room, len(summary.columns)) * (width + 2)))
    if len(summary.columns) <= room:
        yield _Columns(summary.columns, range(len(summary.columns)), names, width)
        return
    chunk: list[int] = []
    for model in summary.models:
        places = [place for place, column in enumerate(summary.columns) if column.model == model]
        if chunk and len(chunk) + len(places) > room:
            yield _chunk(summary, chunk, names, width)
            chunk = []
        chunk += places
        while len(chunk) > room:
            yield _chunk(summary, chunk[:room], names, width)
            chunk = chunk[room:]
    if chunk:
        yield _chunk(summary, chunk, names, width)


def _chunk(summary: Summary, places: Sequence[int], names: int, width: int) -> _Columns:
    return _Columns([summary.columns[place] for place in places], tuple(places), names, width)


def _everything(summary: Summary, sheet: Sheet) -> Iterator[str]:
    """All that stands in a column."""
    for column in summary.columns:
        yield column.variant
        for row in summary.rows:
            yield _cell(summary.cell(row, column), row, sheet)
    for group in figures(summary):
        for _, texts in group.rows:
            yield from texts


def _table(summary: Summary, sheet: Sheet, columns: _Columns) -> Iterator[str]:
    yield from _head(sheet, columns)
    category = None
    for row in summary.rows:
        if row.category != category:
            category = row.category
            yield _category(summary, sheet, columns, category)
        cells = [summary.cell(row, column) for column in columns.chosen]
        texts = [_cell(count, row, sheet) for count in cells]
        yield _line(sheet, columns, f"  {row.case}", texts, [COLOURS[count.word] for count in cells])
    for group in figures(summary):
        rows = [(label, [texts[place] for place in columns.places]) for label, texts in group.rows]
        rows = [(label, texts) for label, texts in rows if any(text != NOTHING for text in texts)]
        if rows:
            yield ""
            yield sheet.style(sheet.fit(group.heading, sheet.width).rstrip(), "bold")
        for label, texts in rows:
            yield _line(sheet, columns, f"  {label}", texts)


def _head(sheet: Sheet, columns: _Columns) -> Iterator[str]:
    shown, last = [], None
    for column in columns.chosen:
        shown.append(column.model if column.model != last else "")
        last = column.model
    if len(set(filter(None, shown))) == 1:
        # Nothing stands beside it, so it may be long.
        space = " " * (columns.names + 2)
        yield sheet.style((space + sheet.fit(shown[0], max(8, sheet.width - len(space)))).rstrip(), "bold")
    else:
        yield from _names(sheet, columns, shown)
    yield from _names(sheet, columns, [column.variant for column in columns.chosen])


def _names(sheet: Sheet, columns: _Columns, names: Sequence[str]) -> Iterator[str]:
    """Names above their columns, on as many lines as they take: names that begin alike may differ at their ends."""
    broken = [wrap(sheet.one_line(name), columns.width, max_lines=HIGHEST, placeholder="…") for name in names]
    for parts in zip_longest(*broken, fillvalue=""):
        yield _line(sheet, columns, "", parts, ["bold"] * len(parts))


def _category(summary: Summary, sheet: Sheet, columns: _Columns, category: str) -> str:
    texts = []
    for column in columns.chosen:
        counts = [summary.cell(row, column) for row in summary.rows if row.category == category]
        passed, scored = sum(count.passed for count in counts), sum(count.scored for count in counts)
        texts.append(f"{passed}/{scored}" if scored else "")
    return _line(sheet, columns, category, texts, ["dim"] * len(texts), "bold")


def _cell(count: Count, row: Row, sheet: Sheet) -> str:
    if count.word == "-":
        return "–"
    marks = marks_of(count, row)
    counted = " ".join(f"{letter}{number}" for letter, number in marks.items())
    share = f"{count.passed}/{count.scored} " if count.scored else ""
    return f"{share}{count.word} {counted if sheet.width >= ROOMY else ''.join(marks)}".rstrip()


def _line(
    sheet: Sheet, columns: _Columns, label: str, texts: Sequence[str], colours: Sequence[str] = (), bold: str = ""
) -> str:
    name = sheet.fit(label, columns.names)
    parts = [sheet.style(name, bold) if bold else name]
    for place, text in enumerate(texts):
        fitted = sheet.fit(text, columns.width)
        words = fitted.rstrip()
        # Only the words are coloured, and nothing is left at the end of the line.
        space = " " * (len(fitted) - len(words)) if place < len(texts) - 1 else ""
        parts.append((sheet.style(words, colours[place]) if colours and words else words) + space)
    return "  ".join(parts).rstrip()


# Below it


def _legend(summary: Summary, sheet: Sheet) -> Iterator[str]:
    seen = dict.fromkeys(
        letter
        for row in summary.rows
        for column in summary.columns
        for letter in marks_of(summary.cell(row, column), row)
    )
    words = [f"{letter} {words}" for letter, words in MARKS.items() if letter in seen]
    if words:
        for line in _wrapped(f"Marks: {'; '.join(words)}.", sheet):
            yield sheet.style(line, "dim")


def _comparisons(summary: Summary, sheet: Sheet) -> Iterator[str]:
    yield sheet.style("Compared case by case", "bold")
    for model, variant, first, comparison in summary.compared:
        whose = f" ({model})" if len(summary.models) > 1 else ""
        told = describe(comparison)
        colour = ("green" if comparison.difference > 0 else "red") if comparison.distinguishable else "dim"
        head = sheet.one_line(f"  {variant} against {first}{whose}: ")
        lines = wrap(told, sheet.width, initial_indent=head, subsequent_indent="    ", break_on_hyphens=False)
        if len(head) > sheet.width // 2 and len(lines) > 1:
            yield sheet.fit(head, sheet.width).rstrip()
            lines = wrap(told, sheet.width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
            head = "    "
        for line in lines:
            lead = head if line.startswith(head) else ""
            yield lead + sheet.style(line[len(lead) :], colour)


def _wrapped(text: str, sheet: Sheet) -> list[str]:
    return wrap(sheet.one_line(text), sheet.width, subsequent_indent="  ", break_on_hyphens=False)
