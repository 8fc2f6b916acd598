"""`codex-bridge lab report`: the reports of a run, from its results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.cli.lab.options import (
    Baseline,
    Cases,
    Categories,
    Csv,
    Html,
    Json,
    JUnit,
    Markdown,
    MaxErrors,
    MinClean,
    MinPass,
    Tags,
)

if TYPE_CHECKING:
    from bridge.lab.case import Case
    from bridge.lab.report.counted import Only
    from bridge.lab.result import ResultFile


def command(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="Results of `lab run`.", show_default=False)],
    suite: Annotated[
        Path | None, typer.Option(help="The suite that was asked; [the one that the results name, if it is there]")
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option("--variant", "-V", help="A .yaml file of a variant in the results; the first comes first."),
    ] = None,
    case: Cases = None,
    category: Categories = None,
    tag: Tags = None,
    html: Html = None,
    junit: JUnit = None,
    json: Json = None,
    csv: Csv = None,
    markdown: Markdown = None,
    baseline: Baseline = None,
    min_pass: MinPass = None,
    min_clean: MinClean = None,
    max_errors: MaxErrors = 5,
) -> None:
    """Show what came of a run, also while it goes on, and write reports of it. Nobody is asked.

    A report to `-` goes to stdout, in place of the table.

    Exit codes: 0, 1 (a report could not be written), 2 (typed wrong, no results in the file), 100 (a threshold or the
    baseline was missed).
    """
    from bridge.cli.lab.reporting import Reports, Thresholds, report
    from bridge.lab.report.counted import ALL, Only
    from bridge.lab.result import ResultFile
    from bridge.lab.variant_file import find_variant

    reports = Reports(html=html, junit=junit, json=json, csv=csv, markdown=markdown)
    thresholds = Thresholds(min_pass=min_pass, min_clean=min_clean, max_errors=max_errors, baseline=baseline)
    thresholds.check()
    file = ResultFile(results)
    chosen = _cases(file, suite, case, category, tag)
    variants = {found.name: found for found in map(find_variant, variant or ())}
    only = Only(chosen) if suite is not None or case or category or tag else ALL
    raise typer.Exit(report(file, chosen, variants, reports, thresholds, only=only, planned=_planned(file, only)))


def _planned(file: ResultFile, only: Only) -> int:
    """How many results the file would have of these, if no run had been cut short; 0 when it does not tell."""
    cases = [case for case in file.known("cases") if not only.cases or case in only.cases]
    plans = [plan for plan in file.known("plan").values() if isinstance(plan, dict)]
    return len(cases) * sum(repeat for plan in plans for repeat in plan.values() if isinstance(repeat, int))


def _cases(
    file: ResultFile, suite: Path | None, ids: list[str] | None, categories: list[str] | None, tags: list[str] | None
) -> dict[str, Case]:
    """The cases that were asked, by id; none when nobody says where they are and they are not where they were."""
    from bridge.cli.lab.options import choose_cases
    from bridge.cli.lab.running import fingerprint
    from bridge.cli.streams import say
    from bridge.errors import UsageError

    header = file.header()
    place = suite or Path(str(header.get("suite", "")))
    if suite is None and (not header.get("suite") or not place.exists()):
        if ids or categories or tags:
            raise UsageError("The suite is not where it was: name it with --suite.")
        say("note", "the suite is not where it was: without --suite there are no categories, and nothing is explained")
        return {}
    chosen = {case.id: case for case in choose_cases(place, ids, categories, tags)}
    known = header.get("cases")
    changed = [
        name
        for name, case in chosen.items()
        if isinstance(known, dict) and known.get(name, fingerprint(case)) != fingerprint(case)
    ]
    if changed:
        some = ", ".join(changed[:5]) + (" and more" if len(changed) > 5 else "")
        say("note", f"{len(changed)} case(s) have changed since they were asked: {some}")
    return chosen
