"""What the lab commands have in common: the suite and which of its cases, reports and thresholds."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bridge.lab.case import Case

SuitePath = Annotated[
    Path, typer.Argument(metavar="SUITE", help="Cases: a YAML or JSON file, or a directory.", show_default=False)
]
Cases = Annotated[
    list[str] | None, typer.Option("--case", metavar="ID", help="Only these cases; * and ? stand for anything.")
]
Categories = Annotated[list[str] | None, typer.Option("--category", metavar="NAME", help="Only these categories.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="Only cases with one of these tags.")]


def choose_cases(
    suite: Path, ids: list[str] | None, categories: list[str] | None, tags: list[str] | None
) -> tuple[Case, ...]:
    """The cases of a suite that are wanted. Raises UsageError for a bad suite, and when none is left."""
    from bridge.errors import UsageError
    from bridge.lab.suite import load_suite

    chosen = tuple(
        case
        for case in load_suite(suite).cases
        if (not ids or any(fnmatchcase(case.id, pattern) for pattern in ids))
        and (not categories or case.category in categories)
        and (not tags or set(case.tags) & set(tags))
    )
    if not chosen:
        raise UsageError(f"{suite} holds no case that fits.")
    return chosen
