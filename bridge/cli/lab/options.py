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

Html = Annotated[Path | None, typer.Option(help="Write a report as one HTML file.")]
JUnit = Annotated[Path | None, typer.Option(help="Write a report as JUnit XML.")]
Json = Annotated[Path | None, typer.Option(help="Write a report as JSON; it serves as a baseline.")]
Csv = Annotated[Path | None, typer.Option(help="Write all results as CSV.")]
Markdown = Annotated[Path | None, typer.Option(help="Write a report as Markdown.")]
Baseline = Annotated[
    Path | None, typer.Option(help="An earlier --json report: a case that got worse is a miss (exit code 100).")
]
MinPass = Annotated[
    float | None, typer.Option(min=0, max=100, help="Percent of samples that must pass, for each model and variant.")
]
MinClean = Annotated[
    float | None, typer.Option(min=0, max=100, help="Percent of answers with calls that must be clean in form.")
]
MaxErrors = Annotated[
    float, typer.Option(min=0, max=100, help="Percent of requests that may fail for reasons of the machinery.")
]


def choose_cases(
    suite: Path, ids: list[str] | None, categories: list[str] | None, tags: list[str] | None
) -> tuple[Case, ...]:
    """The cases of a suite that are wanted.

    Raises UsageError for a bad suite, for a name that fits none of its cases, and when none is left.
    """
    from bridge.errors import UsageError
    from bridge.lab.suite import load_suite
    from bridge.lab.suite.faults import did_you_mean

    cases = load_suite(suite).cases
    for flag, wanted, known in (
        ("--case", ids, [case.id for case in cases]),
        ("--category", categories, [case.category for case in cases]),
        ("--tag", tags, [tag for case in cases for tag in case.tags]),
    ):
        for name in wanted or ():
            if not (any(fnmatchcase(each, name) for each in known) if wanted is ids else name in known):
                near = did_you_mean(name, dict.fromkeys(known))
                raise UsageError(f"{flag} {name}: {suite} holds no case that fits{near or '.'}")
    chosen = tuple(
        case
        for case in cases
        if (not ids or any(fnmatchcase(case.id, pattern) for pattern in ids))
        and (not categories or case.category in categories)
        and (not tags or set(case.tags) & set(tags))
    )
    if not chosen:
        raise UsageError(f"{suite} holds no case that fits.")
    return chosen
