"""The report for people, on a terminal and as Markdown: cases by columns, the figures of each column, comparisons."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bridge.lab.checks import CHECKS
from bridge.lab.report.summary import MARKS, Count, Row, Share, Summary, ordered, percent, percent_range
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


class Figures(NamedTuple):
    """Rows of figures under a heading: (label, a text for each column)."""

    heading: str
    rows: list[tuple[str, list[str]]]


def figures(summary: Summary) -> Iterator[Figures]:
    """All groups of figures that are not empty."""
    rates = list(map(summary.rates.__getitem__, summary.columns))
    counts = list(map(summary.counts.__getitem__, summary.columns))
    totals = [
        ("passed", [_share(count.pass_share) for count in counts]),
        (
            "95 % interval",
            [percent_range(rate.interval) if count.scored else "–" for count, rate in zip(counts, rates, strict=True)],
        ),
        (f"pass@{summary.repeats}", [percent(rate.pass_at) for rate in rates]),
        (f"pass^{summary.repeats}", [percent(rate.pass_hat) for rate in rates]),
        ("clean form", [_share(count.clean_share) for count in counts]),
        ("errors, not counted", [_share(count.error_share) if count.errors else "0" for count in counts]),
        ("input tokens", [f"{count.input_tokens:,}" for count in counts]),
        ("output tokens", [f"{count.output_tokens:,}" for count in counts]),
        ("mean seconds", ["–" if (mean := count.mean_seconds) is None else f"{mean:.2f}" for count in counts]),
    ]
    if not summary.total.errors:
        totals = [row for row in totals if row[0] != "errors, not counted"]
    yield Figures("All cases", totals)
    for heading, name, names in (
        ("Forms", "forms", FORMS),
        ("Repairs", "repairs", None),
        ("Failed checks", "failed_checks", CHECKS),
        ("Errors, not counted", "error_codes", None),
    ):
        total = getattr(summary.total, name)
        rows = [
            (label, [str(getattr(count, name)[label] or ZERO) for count in counts])
            for label in names or ordered(total)
            if total[label]
        ]
        if rows:
            yield Figures(heading, rows)


def _share(share: Share) -> str:
    return f"{share.part}/{share.whole} {percent(share.part / share.whole)}" if share.whole else "–"


def _cell(count: Count, row: Row, *, counted: bool, detail: str = "") -> str:
    """A cell in one line; `counted` shows how many samples have each mark."""
    if count.word == "-":
        return "–"
    marks = count.marks(row)
    shown = " ".join(f"{mark}{number}" for mark, number in marks.items()) if counted else "".join(marks)
    share = f"{count.passed}/{count.scored} " if count.scored else ""
    return f"{share}{count.word}{detail} {shown}".rstrip()


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
    for layout in _layouts(summary, console.width):
        _draw_columns(summary, console, layout)
        console.print()
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
    for sentence in summary.notes:
        console.print(Text(escape_line(f"Note: {sentence}")))


class _Layout(NamedTuple):
    """Columns side by side, by their positions in the summary, and the widths of the labels and of each column."""

    columns: Sequence[int]
    labels: int
    width: int


def _layouts(summary: Summary, width: int) -> list[_Layout]:
    """As many columns as fit, then the others below them. The columns of a model stay together if possible."""
    texts = [column.variant for column in summary.columns]
    counted = width >= ROOMY
    texts += [
        _cell(summary.cell(row, column), row, counted=counted) for row in summary.rows for column in summary.columns
    ]
    texts += [text for group in figures(summary) for _, row in group.rows for text in row]
    widest = min(WIDEST, max(NARROWEST, width - LABELS - 2))
    column_width = min(widest, max(NARROWEST, *map(cell_len, texts)))
    room = max(1, (width - LABELS) // (column_width + 2))
    longest = max((len(row.case) + 2 for row in summary.rows), default=0)
    # The labels get the space that the columns leave.
    labels = max(LABELS, min(longest, width - min(room, len(summary.columns)) * (column_width + 2)))
    groups: list[list[int]] = [[]]
    for model in summary.models:
        indices = [index for index, column in enumerate(summary.columns) if column.model == model]
        if groups[-1] and len(groups[-1]) + len(indices) > room:
            groups.append([])
        groups[-1] += indices
        while len(groups[-1]) > room:
            groups.append(groups[-1][room:])
            del groups[-2][room:]
    return [_Layout(group, labels, column_width) for group in groups]


def _draw_columns(summary: Summary, console: Console, layout: _Layout) -> None:
    columns = [summary.columns[index] for index in layout.columns]
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(width=layout.labels, no_wrap=True, overflow="ellipsis")
    for _ in columns:
        table.add_column(width=layout.width, no_wrap=True, overflow="ellipsis")
    models = [column.model for column in columns]
    if len(set(models)) == 1:
        # Nothing stands beside the name, so it may be long.
        name = " " * (layout.labels + 2) + escape_line(models[0])
        console.print(Text(name, "bold", no_wrap=True, overflow="ellipsis"))
    else:
        before = [None, *models]
        _add_names(table, [model if model != last else "" for model, last in zip(models, before, strict=False)])
    _add_names(table, [column.variant for column in columns])
    category = None
    for row in summary.rows:
        if row.category != category:
            category = row.category
            inside = [
                [summary.cell(each, column) for each in summary.rows if each.category == category] for column in columns
            ]
            sums = [(sum(count.passed for count in counts), sum(count.scored for count in counts)) for counts in inside]
            shares = [f"{passed}/{scored}" if scored else "" for passed, scored in sums]
            table.add_row(Text(escape_line(category), "bold"), *(Text(share, "dim") for share in shares))
        counts = [summary.cell(row, column) for column in columns]
        counted = console.width >= ROOMY
        cells = [Text(_cell(count, row, counted=counted), STYLES[count.word]) for count in counts]
        table.add_row(Text(escape_line(f"  {row.case}")), *cells)
    for group in figures(summary):
        rows = [(label, [texts[index] for index in layout.columns]) for label, texts in group.rows]
        rows = [(label, texts) for label, texts in rows if any(text != ZERO for text in texts)]
        if rows:
            table.add_row("")
            table.add_row(Text(group.heading, "bold"))
        for label, texts in rows:
            table.add_row(Text(escape_line(f"  {label}")), *map(Text, texts))
    console.print(table)


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
    rule = "|".join(("", "---", *("---" for _ in titles), ""))
    yield from ("## Figures", "", _markdown_row("", titles), rule)
    for group in figures(summary):
        for label, texts in group.rows:
            yield _markdown_row(label if group.heading == "All cases" else f"{group.heading}: {escape(label)}", texts)
    yield ""
    if summary.compared:
        yield from ("## Compared case by case", "")
        for model, variant, first, comparison in summary.compared:
            yield f"* {escape(model)}, {escape(variant)} against {escape(first)}: {describe(comparison)}"
        yield ""
    yield from ("## Cases", "", _markdown_row("case", titles), rule)
    category = None
    for row in summary.rows:
        if row.category != category:
            category = row.category
            yield _markdown_row(f"**{escape(category)}**", [""] * len(titles))
        texts = []
        for column in summary.columns:
            count = summary.cell(row, column)
            interval = f" ({percent_range(summary.cell_rates(count).interval)})" if count.scored else ""
            texts.append(_cell(count, row, counted=True, detail=interval))
        yield _markdown_row(escape(row.case), texts)
    yield from ("", "In brackets: the 95 % interval (Wilson) of the share that passed.")
    if marks := _marks(summary):
        yield f"Marks: {marks}."
    for sentence in summary.notes:
        yield from ("", escape(sentence))


def _markdown_row(label: str, texts: Sequence[str]) -> str:
    return f"| {' | '.join((label, *texts))} |"
