"""`turnbridge lab`: test prompts that teach a model to call tools. Each option is declared once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bridge.cli.flags import Flags, dataclass_flags

if TYPE_CHECKING:
    from bridge.lab.case import Case

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

SuitePath = Annotated[
    Path, typer.Argument(metavar="SUITE", help="A YAML or JSON file of cases, or a directory.", show_default=False)
]
FORMATS = ("html", "junit", "json", "csv", "markdown")


@dataclass(frozen=True)
class Choice:
    """Which cases of a suite are wanted."""

    case: Annotated[
        tuple[str, ...], typer.Option("--case", help="Only cases that match; * and ? are wildcards.", metavar="ID")
    ] = ()
    category: Annotated[
        tuple[str, ...], typer.Option("--category", help="Only this category; * and ? are wildcards.", metavar="NAME")
    ] = ()
    tag: Annotated[
        tuple[str, ...], typer.Option("--tag", help="Only cases with this tag; * and ? are wildcards.", metavar="TAG")
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

    html: Annotated[Path | None, typer.Option(help="Write a report as one HTML file.")] = None
    junit: Annotated[Path | None, typer.Option(help="Write a report as JUnit XML.")] = None
    json: Annotated[Path | None, typer.Option(help="Write a report as JSON, which can be a --baseline.")] = None
    csv: Annotated[Path | None, typer.Option(help="Write all results as CSV.")] = None
    markdown: Annotated[Path | None, typer.Option(help="Write a report as Markdown.")] = None
    baseline: Annotated[
        Path | None, typer.Option(help="An earlier --json report. Exit with code 100 if a case got worse.")
    ] = None
    min_pass: Annotated[
        float | None, typer.Option(help="Percent of samples of each model and variant that must pass.", min=0, max=100)
    ] = None
    min_clean: Annotated[
        float | None, typer.Option(help="Percent of answers with calls that must have a clean form.", min=0, max=100)
    ] = None
    max_errors: Annotated[float, typer.Option(help="Percent of requests that may fail.", min=0, max=100)] = 5

    @property
    def files(self) -> dict[str, Path]:
        """The reports to write, by format."""
        return {name: path for name in FORMATS if (path := getattr(self, name)) is not None}


@dataclass(frozen=True)
class Limits:
    """How much is asked at once and in total."""

    repeat: Annotated[int, typer.Option("--repeat", "-n", help="How often to ask each case.", min=1)] = 5
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", help="Parallel requests.", min=1, max=256)] = 4
    max_requests: Annotated[int | None, typer.Option(help="Stop after this many requests.", min=1)] = None
    max_tokens: Annotated[int | None, typer.Option(help="Stop when this many tokens are used.", min=1)] = None
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer.", min=1)] = 180
    keep_going: Annotated[
        bool,
        typer.Option(
            "--keep-going",
            help="Continue after a permanent error (not logged in, wrong key, no quota, unknown model).",
        ),
    ] = False


@dataclass(frozen=True)
class Configuration:
    """The backends, as `serve` gets them; without a flag the environment and the configuration file decide."""

    mock_only: Annotated[bool | None, typer.Option("--mock-only", help="As for serve. [PROXY_MOCK_ONLY]")] = None
    codex_bin: Annotated[str | None, typer.Option(help="As for serve. [CODEX_BIN]")] = None
    codex_home: Annotated[Path | None, typer.Option(help="As for serve. [CODEX_HOME]")] = None
    dialect: Annotated[str | None, typer.Option(help="As for serve. [PROXY_DIALECT]")] = None
    config: Annotated[Path | None, typer.Option(help="As for serve. [PROXY_CONFIG]")] = None
    log_events: Annotated[
        str | None, typer.Option(help="Keep an event log, which --from can score again.", metavar="DIR|FILE")
    ] = None


@dataclass(frozen=True)
class Sources:
    """What is asked, or read again, and where the results are kept."""

    model: Annotated[tuple[str, ...], typer.Option("--model", "-m", help="A model to ask. May be repeated.")] = ()
    variant: Annotated[
        tuple[str, ...],
        typer.Option(
            "--variant",
            "-V",
            help="spec, no-bad-example, short, json-args-object, nonce-tag, native, or a .yaml file. "
            "[spec; with --from all of these]",
        ),
    ] = ()
    results: Annotated[
        Path | None,
        typer.Option(
            help="Where to keep results, one line each. An existing file is continued. "
            "[lab/TIME.jsonl in the state directory; with --from LOG.results.jsonl, overwritten]"
        ),
    ] = None
    log: Annotated[
        Path | None, typer.Option("--from", metavar="LOG", help="Score the answers in this event log; ask no model.")
    ] = None


@dataclass(frozen=True)
class RunOptions(Configuration, Reports, Choice, Limits, Sources):
    """The options of `lab run`; --help lists those of the last base first."""


@dataclass(frozen=True)
class ReportOptions(Reports, Choice):
    """The options of `lab report`."""

    suite: Annotated[Path | None, typer.Option(help="The suite of the run. [the path in the results]")] = None
    variant: Annotated[
        tuple[str, ...],
        typer.Option("--variant", "-V", help="A .yaml file of a variant in the results; columns follow this order."),
    ] = ()


@app.command(short_help="Ask models, score the answers and compare variants.")
@dataclass_flags(RunOptions)
def run(suite: SuitePath, flags: Flags) -> None:
    """Ask every case in every variant of every model, score the answers and compare the variants.

    Results are kept as they come: the same command with the same --results continues an interrupted run. It asks
    requests that failed again; a permanent error ends the run. Cases, variants, models and repetitions can be added.

    Exit codes: 0; 1 (something failed); 2 (wrong usage or a faulty suite); 100 (a threshold or the baseline was
    missed); 130 (Ctrl-C; results are kept).
    """
    from bridge.lab.run import run_lab
    from bridge.settings.file import load_configuration

    configured = load_configuration(**{each.name: flags[each.name] for each in fields(Configuration)}, store="memory")
    raise typer.Exit(run_lab(suite, RunOptions(**flags), *configured))


@app.command(short_help="Show the results of a run and write reports.")
@dataclass_flags(ReportOptions)
def report(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="Results of `lab run`.", show_default=False)],
    flags: Flags,
) -> None:
    """Show the results of a run, also while it is running, and write reports. No model is asked.

    A report to `-` goes to stdout and replaces the table.

    Exit codes: 0; 1 (a report could not be written); 2 (wrong usage, or no results in the file); 100 (a threshold or
    the baseline was missed).
    """
    from bridge.errors import UsageError
    from bridge.lab.case import some
    from bridge.lab.report import check_files, report_results
    from bridge.lab.result import Only, ResultFile
    from bridge.lab.variant import find_variants
    from bridge.terminal import say

    options, file = ReportOptions(**flags), ResultFile(results)
    check_files(options, results)
    about = file.about()
    known, recorded = about.cases, about.suite
    cases: dict[str, Case] = {}
    if options.suite is not None or (recorded and Path(recorded).exists()):
        cases = options.cases(options.suite or Path(recorded))
        changed = [name for name, case in cases.items() if known.get(name, case.fingerprint) != case.fingerprint]
        if changed:
            say("note", f"{len(changed)} case(s) have changed since the run: {some(changed)}")
    elif options.narrowed:
        raise UsageError("The suite has moved. Name it with --suite.")
    else:
        say("note", "the suite has moved; without --suite the report has no categories and no explanations")
    only = Only(cases) if options.suite is not None or options.narrowed else Only()
    # How many results a complete run would have; 0 if the file does not say.
    asked = [name for name in known if not only.cases or name in only.cases]
    planned = len(asked) * sum(sum(repeats.values()) for repeats in about.plan.values())
    variants = find_variants(options.variant)
    raise typer.Exit(report_results(file, cases, variants, options, only=only, planned=planned))


@app.command(short_help="Check a suite and list its cases.")
@dataclass_flags(Choice)
def cases(suite: SuitePath, flags: Flags) -> None:
    """Check a suite and list its cases: category, id, tools and expected calls. No model is asked."""
    from bridge.log.commands.terminal import fit, printing
    from bridge.text import escape_line

    chosen = Choice(**flags).cases(suite).values()
    with printing() as screen:
        for each in chosen:
            expected = ", ".join(call.name for call in each.expect.calls) or "no call"
            tools = f"{len(each.tools)} tool{'' if len(each.tools) == 1 else 's'}"
            line = f"{fit(each.category, 20)} {fit(each.id, 32)} {fit(tools, 8)} {escape_line(expected)}"
            screen.line(fit(line, screen.width).rstrip() if screen.on_terminal else line)
        screen.line(f"{len(chosen)} case(s) in {len({each.category for each in chosen})} categories")


@app.command(short_help="Print the text that a variant injects.")
@dataclass_flags(Choice)
def render(
    suite: SuitePath,
    flags: Flags,
    variant: Annotated[str, typer.Option("--variant", "-V", help="A shipped variant, or a .yaml file.")] = "spec",
) -> None:
    """Print the exact text that a variant injects for the tools of a case. Its size goes to stderr.

    Of several cases each distinct text is printed once. A newline follows each, as on a terminal.
    """
    import os

    from bridge.core.turn import estimate_text
    from bridge.lab.case import some
    from bridge.lab.variant import find_variant
    from bridge.log.commands.terminal import BROKEN_PIPE
    from bridge.terminal import STDOUT, StdoutClosed, say, write_stdout

    chosen, found = Choice(**flags).cases(suite).values(), find_variant(variant)
    texts: dict[str, list[str]] = {}
    for each in chosen:
        texts.setdefault(found.text_for(each), []).append(each.id)
    end = "\n" if len(texts) > 1 or os.isatty(STDOUT) else ""
    for text, ids in texts.items():
        say("note", f"{found.name} for {some(ids, 4)}: {len(text):,} characters, about {estimate_text(text):,} tokens")
        try:
            write_stdout((text + end if text else "").encode("utf-8", "backslashreplace"))
        except StdoutClosed:
            raise typer.Exit(BROKEN_PIPE) from None
