"""The options of the commands, each declared once. They import nothing heavy: `--help` must not load the laboratory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

if TYPE_CHECKING:
    from bridge.lab.case import Case

FORMATS = ("html", "junit", "json", "csv", "markdown")


@dataclass(frozen=True)
class Choice:
    """Which cases of a suite are wanted."""

    case: Annotated[
        tuple[str, ...], Option("--case", help="Only cases that match; * and ? are wildcards.", metavar="ID")
    ] = ()
    category: Annotated[
        tuple[str, ...], Option("--category", help="Only this category; * and ? are wildcards.", metavar="NAME")
    ] = ()
    tag: Annotated[
        tuple[str, ...], Option("--tag", help="Only cases with this tag; * and ? are wildcards.", metavar="TAG")
    ] = ()

    @property
    def narrowed(self) -> bool:
        """Whether these are only some of the cases."""
        return bool(self.case or self.category or self.tag)

    def cases(self, suite: Path) -> dict[str, Case]:
        """The chosen cases by id.

        Raises UsageError for a suite with faults, for an option that matches no case, and if no case is left.
        """
        from bridge.errors import UsageError
        from bridge.lab.suite import did_you_mean, load_suite

        chosen = list(every := load_suite(suite).cases)
        options: tuple[tuple[str, tuple[str, ...], Callable[[Case], tuple[str, ...]]], ...] = (
            ("case", self.case, lambda case: (case.id,)),
            ("category", self.category, lambda case: (case.category,)),
            ("tag", self.tag, lambda case: case.tags),
        )
        for option, patterns, names in options:
            known = dict.fromkeys(name for case in every for name in names(case))
            matched = set[str]()
            for pattern in patterns:
                if not (found := [name for name in known if fnmatchcase(name, pattern)]):
                    near = did_you_mean(pattern, known)
                    raise UsageError(f"--{option} {pattern}: no case of {suite} matches{near or '.'}")
                matched.update(found)
            if patterns:
                chosen = [case for case in chosen if not matched.isdisjoint(names(case))]
        if not chosen:
            raise UsageError(f"No case of {suite} matches all options.")
        return {case.id: case for case in chosen}


@dataclass(frozen=True)
class Reports:
    """What to make of the results: files, of which `-` is stdout and replaces the table, and thresholds."""

    html: Annotated[Path | None, Option(help="Write a report as one HTML file.")] = None
    junit: Annotated[Path | None, Option(help="Write a report as JUnit XML.")] = None
    json: Annotated[Path | None, Option(help="Write a report as JSON, which can be a --baseline.")] = None
    csv: Annotated[Path | None, Option(help="Write all results as CSV.")] = None
    markdown: Annotated[Path | None, Option(help="Write a report as Markdown.")] = None
    baseline: Annotated[
        Path | None, Option(help="An earlier --json report. Exit with code 100 if a case got worse.")
    ] = None
    min_pass: Annotated[
        float | None, Option(help="Percent of samples of each model and variant that must pass.", min=0, max=100)
    ] = None
    min_clean: Annotated[
        float | None, Option(help="Percent of answers with calls that must have a clean form.", min=0, max=100)
    ] = None
    max_errors: Annotated[float, Option(help="Percent of requests that may fail with an error.", min=0, max=100)] = 5

    @property
    def files(self) -> dict[str, Path]:
        """The reports to write, by format."""
        return {name: path for name in FORMATS if (path := getattr(self, name)) is not None}


@dataclass(frozen=True)
class Limits:
    """How much is asked at once and in total."""

    repeat: Annotated[int, Option("--repeat", "-n", help="How often to ask each case.", min=1)] = 5
    concurrency: Annotated[int, Option("--concurrency", "-c", help="Parallel requests.", min=1, max=256)] = 4
    max_requests: Annotated[int | None, Option(help="Stop after this many requests.", min=1)] = None
    max_tokens: Annotated[int | None, Option(help="Stop when this many tokens are used.", min=1)] = None
    timeout: Annotated[float, Option(help="Seconds to wait for an answer.", min=1)] = 180
    keep_going: Annotated[
        bool,
        Option(
            "--keep-going",
            help="Continue after a permanent error (not logged in, wrong key, no quota, unknown model).",
        ),
    ] = False


@dataclass(frozen=True)
class Configuration:
    """The backends, as `serve` gets them; without a flag the environment and the configuration file decide."""

    mock_only: Annotated[bool | None, Option("--mock-only", help="As for serve. [PROXY_MOCK_ONLY]")] = None
    codex_bin: Annotated[str | None, Option(help="As for serve. [CODEX_BIN]")] = None
    codex_home: Annotated[Path | None, Option(help="As for serve. [CODEX_HOME]")] = None
    dialect: Annotated[str | None, Option(help="As for serve. [PROXY_DIALECT]")] = None
    config: Annotated[Path | None, Option(help="As for serve. [PROXY_CONFIG]")] = None
    log_events: Annotated[
        str | None, Option(help="Keep an event log, which --from can score again.", metavar="DIR|FILE")
    ] = None


@dataclass(frozen=True)
class RunOptions(Configuration, Limits, Reports, Choice):
    """The options of `lab run`."""

    model: Annotated[tuple[str, ...], Option("--model", "-m", help="A model to ask. Can be given several times.")] = ()
    variant: Annotated[
        tuple[str, ...],
        Option(
            "--variant",
            "-V",
            help="spec, no-bad-example, short, json-args-object, nonce-tag, native, or a .yaml file. "
            "[spec; with --from all of these]",
        ),
    ] = ()
    results: Annotated[
        Path | None,
        Option(
            help="Where to keep results, one line each. An existing file is continued. "
            "[lab/TIME.jsonl in the state directory; with --from LOG.results.jsonl, overwritten]"
        ),
    ] = None
    log: Annotated[
        Path | None, Option("--from", metavar="LOG", help="Score the answers in this event log; ask no model.")
    ] = None


@dataclass(frozen=True)
class ReportOptions(Reports, Choice):
    """The options of `lab report`."""

    suite: Annotated[Path | None, Option(help="The suite of the run. [the path in the results]")] = None
    variant: Annotated[
        tuple[str, ...],
        Option("--variant", "-V", help="A .yaml file of a variant in the results; columns follow this order."),
    ] = ()
