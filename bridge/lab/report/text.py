"""The report for people, on a terminal and as Markdown: cases by columns, the figures of each column, comparisons."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from operator import attrgetter

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bridge.lab.checks import CHECKS
from bridge.lab.report.effects import Effect
from bridge.lab.report.summary import MARKS, Column, Count, Row, Share, Summary, ordered, percent, percent_range
from bridge.lab.score import FORMS
from bridge.lab.stats import describe
from bridge.terminal import escape_line

ZERO = "·"
"""Shown in place of a count of zero."""
STYLES = {"PASS": "green", "MIXED": "yellow", "FAIL": "red", "ERROR": "magenta", "-": "dim"}
ROOMY = 100
"""From this width on, marks have counts."""
NARROWEST, WIDEST = 9, 20
"""The width of a column."""
LABELS = 26
"""The least width of the labels; the figures have labels that long."""
MAX_NAME = 120
"""Characters of a name above a column."""

Line = tuple[str, list[str]]
"""A label, and a text for each column."""


def figures(summary: Summary) -> Iterator[tuple[str, list[Line]]]:
    """The figures of all columns, in groups with a heading."""
    counts = [summary.counts[column] for column in summary.columns]
    totals = [
        ("passed", [_share(count.pass_share) for count in counts]),
        ("95 % interval", [percent_range(count.interval) if count.scored else "–" for count in counts]),
        (f"pass@{summary.repeats}", [percent(count.pass_at) for count in counts]),
        (f"pass^{summary.repeats}", [percent(count.pass_hat) for count in counts]),
        ("clean form", [_share(count.clean_share) for count in counts]),
    ]
    if summary.total.errors:
        totals.append(("errors, not counted", [_share(each.error_share) if each.errors else "0" for each in counts]))
    totals += [
        ("input tokens", [f"{count.input_tokens:,}" for count in counts]),
        ("output tokens", [f"{count.output_tokens:,}" for count in counts]),
        ("mean seconds", ["–" if (mean := count.mean_seconds) is None else f"{mean:.2f}" for count in counts]),
    ]
    yield "All cases", totals
    for heading, name, names in (
        ("Forms", "forms", FORMS),
        ("Repairs", "repairs", None),
        ("Failed checks", "failed_checks", CHECKS),
        ("Errors, not counted", "error_codes", None),
    ):
        total = getattr(summary.total, name)
        labels = [label for label in names or ordered(total) if any(getattr(each, name)[label] for each in counts)]
        if labels:
            yield heading, [(label, [str(getattr(each, name)[label] or ZERO) for each in counts]) for label in labels]


def shown_effects(summary: Summary) -> tuple[Effect, ...]:
    """The effects, if the study has several dimensions or levels; of a single one the comparison says enough."""
    return summary.effects if len(summary.effects) > 1 else ()


def _share(share: Share) -> str:
    return f"{share.part}/{share.whole} {percent(share.part / share.whole)}" if share.whole else "–"


def _by_category(summary: Summary) -> Iterator[tuple[str, list[tuple[Row, list[Count]]]]]:
    """The rows of each category with their cells."""
    for category, rows in groupby(summary.rows, attrgetter("category")):
        yield category, [(row, [summary.cell(row, column) for column in summary.columns]) for row in rows]


def _cell(count: Count, row: Row, *, counted: bool, interval: bool = False) -> str:
    """A cell in one line; `counted` shows how many samples have each mark."""
    if count.word == "-":
        return "–"
    marks = count.marks(row)
    shown = " ".join(f"{mark}{number}" for mark, number in marks.items()) if counted else "".join(marks)
    share = f"{count.passed}/{count.scored} " if count.scored else ""
    bounds = f" ({percent_range(count.interval)})" if interval and count.scored else ""
    return f"{share}{count.word}{bounds} {shown}".rstrip()


def _marks(summary: Summary) -> str:
    """The marks that occur, with their meaning."""
    used = {mark for row in summary.rows for column in summary.columns for mark in summary.cell(row, column).marks(row)}
    return "; ".join(f"{mark} {words}" for mark, words in MARKS.items() if mark in used)


# On a terminal


def text_lines(summary: Summary, width: int, *, coloured: bool = False) -> Iterator[str]:
    """The report, line by line; no line is wider than `width`."""
    console = Console(
        width=width,
        color_system="standard" if coloured else None,
        force_terminal=coloured,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as capture:
        _draw(summary, console)
    for line in capture.get().rstrip("\n").split("\n"):
        yield line.rstrip()


def _draw(summary: Summary, console: Console) -> None:
    if not summary.columns:
        console.print("No results.")
        return
    _draw_tables(summary, console)
    if marks := _marks(summary):
        console.print(Text(f"Marks: {marks}.", "dim"))
        console.print()
    if summary.compared:
        console.print(Text("Compared case by case", "bold"))
        grid = Table.grid(padding=(0, 1))
        grid.add_column(max_width=console.width // 2)
        grid.add_column()
        for model, variant, first, comparison in summary.compared:
            whose = f" ({model})" if len(summary.models) > 1 else ""
            style = "dim"
            if comparison.distinguishable:
                style = "green" if comparison.difference > 0 else "red"
            label = Text(escape_line(f"  {variant} against {first}{whose}:"))
            grid.add_row(label, Text(describe(comparison), style))
        console.print(grid)
    if effects := shown_effects(summary):
        console.print()
        console.print(Text("What makes the difference", "bold"))
        for effect in effects:
            style = ("green" if effect.comparison.difference > 0 else "red") if effect.seen else "dim"
            name = f"  {effect.dimension} {effect.level} against {effect.first}: "
            console.print(Text.assemble(escape_line(name), (effect.words, style)))
    for sentence in summary.notes:
        console.print(Text(escape_line(f"Note: {sentence}")))


def _draw_tables(summary: Summary, console: Console) -> None:
    """As many columns as fit, then the others below them. The columns of a model stay together if possible."""
    counted = console.width >= ROOMY
    texts = [column.variant for column in summary.columns]
    texts += [text.plain for _, line in _table_lines(summary, counted) for text in line]
    widest = min(WIDEST, max(NARROWEST, console.width - LABELS - 2))
    width = min(widest, max(NARROWEST, *map(cell_len, texts)))
    room = max(1, (console.width - LABELS) // (width + 2))
    # The labels get the space that the columns leave.
    left = console.width - min(room, len(summary.columns)) * (width + 2)
    labels = max(LABELS, min(max((len(row.case) + 2 for row in summary.rows), default=0), left))
    parts: list[list[Column]] = []
    for model in summary.models:
        of_model = [column for column in summary.columns if column.model == model]
        for start in range(0, len(of_model), room):
            columns = of_model[start : start + room]
            if parts and len(parts[-1]) + len(columns) <= room:
                parts[-1] += columns
            else:
                parts.append(columns)
    for part in parts:
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(width=labels, no_wrap=True, overflow="ellipsis")
        for _ in part:
            table.add_column(width=width, no_wrap=True, overflow="ellipsis")
        models = [column.model for column in part]
        if len(set(models)) == 1:
            # Nothing stands beside the name, so it may be long.
            name = " " * (labels + 2) + escape_line(models[0])
            console.print(Text(name, "bold", no_wrap=True, overflow="ellipsis"))
        else:
            _add_names(table, ["" if name == before else name for before, name in pairwise(["", *models])])
        _add_names(table, [column.variant for column in part])
        for label, line in _table_lines(replace(summary, columns=tuple(part)), counted):
            table.add_row(label, *line)
        console.print(table)
        console.print()


def _table_lines(summary: Summary, counted: bool) -> Iterator[tuple[Text, list[Text]]]:
    for category, rows in _by_category(summary):
        sums = [
            (sum(count.passed for count in counts), sum(count.scored for count in counts))
            for counts in zip(*(counts for _, counts in rows), strict=True)
        ]
        shares = [Text(f"{passed}/{scored}" if scored else "", "dim") for passed, scored in sums]
        yield Text(escape_line(category), "bold"), shares
        for row, counts in rows:
            cells = [Text(_cell(count, row, counted=counted), STYLES[count.word]) for count in counts]
            yield Text(escape_line(f"  {row.case}")), cells
    for heading, lines in figures(summary):
        yield Text(""), []
        yield Text(heading, "bold"), []
        for label, texts in lines:
            yield Text(escape_line(f"  {label}")), list(map(Text, texts))


def _add_names(table: Table, names: Sequence[str]) -> None:
    """Names above their columns, folded: names that begin alike may differ at their ends."""
    cut = [name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}…" for name in names]
    table.add_row("", *(Text(escape_line(name), "bold", no_wrap=False, overflow="fold") for name in cut))


# Markdown

_SPECIAL = re.compile(r"[\\`*_\[\]<>#|~@&$]|^[-+=]|(?<=:)//|(?<=www)\.")
_NAME = re.compile(r"[A-Za-z0-9]+(?:[_-][A-Za-z0-9]+)*")
"""Names in which an underscore does not mean emphasis."""


def escape(text: str) -> str:
    """Text without Markdown, on one line: no markup, no mentions, no links."""
    text = escape_line(text)
    if _NAME.fullmatch(text):
        return text
    # Character references, because HTML within Markdown leaves them alone, too.
    return _SPECIAL.sub(lambda found: "".join(f"&#{ord(each)};" for each in found[0]), text)


def markdown_lines(summary: Summary) -> Iterator[str]:
    """What was missed, figures, comparisons, all cells."""
    yield "# Tool calls" + (f": {escape(summary.suite)}" if summary.suite else "")
    yield ""
    if not summary.columns:
        yield "No results."
        return
    if summary.missed:
        yield from ("## Missed", "", *(f"* {escape(sentence)}" for sentence in summary.missed), "")
    titles = [f"{escape(column.model)} {escape(column.variant)}" for column in summary.columns]
    rule = _markdown_row("---", ["---"] * len(titles)).replace(" ", "")
    yield from ("## Figures", "", _markdown_row("", titles), rule)
    for heading, lines in figures(summary):
        for label, texts in lines:
            yield _markdown_row(label if heading == "All cases" else f"{heading}: {escape(label)}", texts)
    yield ""
    if summary.compared:
        yield from ("## Compared case by case", "")
        for model, variant, first, comparison in summary.compared:
            yield f"* {escape(model)}, {escape(variant)} against {escape(first)}: {describe(comparison)}"
        yield ""
    if effects := shown_effects(summary):
        yield from ("## What makes the difference", "")
        for effect in effects:
            names = (effect.dimension, effect.level, effect.first)
            yield "* {} {} against {}: {}".format(*map(escape, names), effect.words)
        yield ""
    yield from ("## Cases", "", _markdown_row("case", titles), rule)
    for category, rows in _by_category(summary):
        yield _markdown_row(f"**{escape(category)}**", [""] * len(titles))
        for row, counts in rows:
            cells = [_cell(count, row, counted=True, interval=True) for count in counts]
            yield _markdown_row(escape(row.case), cells)
    yield from ("", "In brackets: the 95 % interval (Wilson) of the share that passed.")
    if marks := _marks(summary):
        yield f"Marks: {marks}."
    for sentence in summary.notes:
        yield from ("", escape(sentence))


def _markdown_row(label: str, texts: Sequence[str]) -> str:
    return f"| {' | '.join((label, *texts))} |"
