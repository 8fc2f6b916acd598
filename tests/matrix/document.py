"""The page that has the battery's table, between two marks."""

from __future__ import annotations

from harness import ROOT

PAGE = ROOT / "docs/backends.md"
BEGIN, END = "<!-- matrix -->", "<!-- end of matrix -->"


def table_in(text: str) -> str:
    """The table as it stands there."""
    return text.partition(BEGIN)[2].partition(END)[0].strip()


def with_table(text: str, table: str) -> str:
    """The page with another table."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    assert (begin, end) == (BEGIN, END), f"{PAGE} has no marks for the table"
    return f"{head}{begin}\n\n{table}\n\n{end}{tail}"
