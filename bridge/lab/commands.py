"""`turnbridge lab`: test prompts that teach a model to call tools. Each option is declared once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridge.cli.flags import Flags, dataclass_flags
from bridge.lab import export_command, import_command

if TYPE_CHECKING:
    from bridge.lab.case import Case

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

SuitePath = Annotated[
    Path, typer.Argument(metavar="SUITE", help="A YAML or JSON file of cases, or a directory.", show_default=False)
]


def _option(help: str, *names: str, default: Any = None, **more: Any) -> Any:
    return field(default=default, metadata={"option": typer.Option(*names, help=help, **more)})


@dataclass(frozen=True)
class Choice:
    """Which cases of a suite are wanted."""

    case: tuple[str, ...] = _option("Only cases that match; * and ? are wildcards.", "--case", metavar="ID", default=())
    category: tuple[str, ...] = _option(
        "Only this category; * and ? are wildcards.", "--category", metavar="NAME", default=()
    )
    tag: tuple[str, ...] = _option(
        "Only cases with this tag; * and ? are wildcards.", "--tag", metavar="TAG", default=()
    )

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


FORMATS = ("html", "junit", "json", "csv", "markdown")


@dataclass(frozen=True)
class Reports:
    """What to make of the results: files, of which `-` is stdout and replaces the table, and thresholds."""

    html: Path | None = _option("Write a report as one HTML file.")
    junit: Path | None = _option("Write a report as JUnit XML.")
    json: Path | None = _option("Write a report as JSON, which can be a --baseline.")
    csv: Path | None = _option("Write all results as CSV.")
    markdown: Path | None = _option("Write a report as Markdown.")
    baseline: Path | None = _option("An earlier --json report. Exit with code 100 if a case got worse.")
    min_pass: float | None = _option("Percent of samples of each model and variant that must pass.", min=0, max=100)
    min_clean: float | None = _option("Percent of answers with calls that must have a clean form.", min=0, max=100)
    max_errors: float = _option("Percent of requests that may fail with an error.", min=0, max=100, default=5)

    @property
    def files(self) -> dict[str, Path]:
        """The reports to write, by format."""
        return {name: path for name in FORMATS if (path := getattr(self, name)) is not None}


@dataclass(frozen=True)
class Limits:
    """How much is asked at once and in total."""

    repeat: int = _option("How often to ask each case.", "--repeat", "-n", min=1, default=5)
    concurrency: int = _option("Parallel requests.", "--concurrency", "-c", min=1, max=256, default=4)
    max_requests: int | None = _option("Stop after this many requests.", min=1)
    max_tokens: int | None = _option("Stop when this many tokens are used.", min=1)
    timeout: float = _option("Seconds to wait for an answer.", min=1, default=180)
    keep_going: bool = _option(
        "Continue after a permanent error (not logged in, wrong key, no quota, unknown model).",
        "--keep-going",
        default=False,
    )


@dataclass(frozen=True)
class Configuration:
    """The backends, as `serve` gets them; without a flag the environment and the configuration file decide."""

    mock_only: bool | None = _option("As for serve. [PROXY_MOCK_ONLY]", "--mock-only")
    codex_bin: str | None = _option("As for serve. [CODEX_BIN]", metavar="PATH")
    codex_home: Path | None = _option("As for serve. [CODEX_HOME]", metavar="DIR")
    dialect: str | None = _option("As for serve. [PROXY_DIALECT]", metavar="NAME")
    config: Path | None = _option("As for serve. [PROXY_CONFIG]")
    log_events: str | None = _option("Keep an event log, which --from can score again.", metavar="DIR|FILE")


@dataclass(frozen=True)
class Sources:
    """What is asked, or read again, and where the results are kept."""

    model: tuple[str, ...] = _option("A model to ask. May be repeated.", "--model", "-m", metavar="NAME", default=())
    variant: tuple[str, ...] = _option(
        "spec, no-bad-example, short, json-args-object, nonce-tag, native, or a .yaml file. "
        "[spec; with --from all of these]",
        "--variant",
        "-V",
        metavar="NAME|FILE",
        default=(),
    )
    instructions: tuple[str, ...] = _option(
        "The client's instructions: as-is, replace:FILE, prepend:FILE or append:FILE. May be repeated.",
        metavar="HOW",
        default=(),
    )
    tools: tuple[str, ...] = _option(
        "Names and descriptions of tools: as-is, or a .yaml file. May be repeated.", metavar="FILE", default=()
    )
    schemas: tuple[str, ...] = _option(
        "Schemas of tools: full, bare (no descriptions) or closed (no other members). May be repeated.",
        metavar="STYLE",
        default=(),
    )
    effort: tuple[str, ...] = _option("The reasoning effort. May be repeated.", metavar="EFFORT", default=())
    temperature: tuple[str, ...] = _option(
        "The temperature, for a backend that takes one. May be repeated.", metavar="NUMBER", default=()
    )
    python_checks: Path | None = _option(
        "Run the checks in Python that cases name, from the modules in this directory.", metavar="DIR"
    )
    judge: str | None = _option("The model that grades answers by the rubrics of cases.", metavar="NAME")
    results: Path | None = _option(
        "Where to keep results, one line each. An existing file is continued. "
        "[lab/TIME.jsonl in the state directory; with --from: LOG.results.jsonl, overwritten]"
    )
    log: Path | None = _option("Score the answers in this event log; ask no model.", "--from", metavar="LOG")


@dataclass(frozen=True)
class RunOptions(Configuration, Reports, Choice, Limits, Sources):
    """The options of `lab run`; --help lists those of the last base first."""


@dataclass(frozen=True)
class ReportOptions(Reports, Choice):
    """The options of `lab report`."""

    suite: Path | None = _option("The suite of the run. [the path in the results]")
    variant: tuple[str, ...] = _option(
        "A .yaml file of a variant in the results; columns follow this order.",
        "--variant",
        "-V",
        metavar="FILE",
        default=(),
    )


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
    from bridge.terminal import escape_line, fit, printing

    chosen = Choice(**flags).cases(suite).values()
    with printing() as screen:
        for each in chosen:
            expected = ", ".join(each.expect.names) or ("any call" if each.expects_calls else "no call")
            tools = f"{len(each.tools)} tool{'' if len(each.tools) == 1 else 's'}"
            line = f"{fit(each.category, 20)} {fit(each.id, 32)} {fit(tools, 8)} {escape_line(expected)}"
            screen.line(fit(line, screen.width).rstrip() if screen.on_terminal else line)
        screen.line(f"{len(chosen)} case(s) in {len({each.category for each in chosen})} categories")


@app.command(short_help="Print the text that a variant injects.")
@dataclass_flags(Choice)
def render(
    suite: SuitePath,
    flags: Flags,
    variant: Annotated[
        str, typer.Option("--variant", "-V", metavar="NAME|FILE", help="A shipped variant, or a .yaml file.")
    ] = "spec",
) -> None:
    """Print the exact text that a variant injects for the tools of a case. Its size goes to stderr.

    Of several cases each distinct text is printed once. A newline follows each, as on a terminal.
    """
    import os

    from bridge.core.turn import estimate_text
    from bridge.lab.case import some
    from bridge.lab.variant import find_variant
    from bridge.terminal import BROKEN_PIPE, STDOUT, StdoutClosed, say, write_stdout

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


@dataclass(frozen=True)
class JudgeOptions(Configuration):
    """The options of `lab judge`."""

    model: str = _option("The judge.", "--model", "-m", metavar="NAME", default="")
    concurrency: int = _option("Parallel requests.", "--concurrency", "-c", min=1, max=256, default=4)
    timeout: float = _option("Seconds to wait for an answer.", min=1, default=180)


@app.command(short_help="See whether a judge model agrees with people.")
@dataclass_flags(JudgeOptions)
def judge(suite: SuitePath, flags: Flags) -> None:
    """Ask a judge model to grade the examples of a suite (expect.judge.examples), whose right verdicts are known.

    Prints each disagreement, the rate of agreement with its interval, and Cohen's kappa.

    Exit codes: 0; 1 (an example got no verdict); 2 (wrong usage, or no examples).
    """
    from bridge.errors import UsageError
    from bridge.lab.judge import judge_examples
    from bridge.settings.file import load_configuration

    options = JudgeOptions(**flags)
    if not options.model:
        raise UsageError("Missing --model. Name the judge; `turnbridge models` lists the models.")
    configured = load_configuration(**{each.name: flags[each.name] for each in fields(Configuration)}, store="memory")
    judge_examples(suite, options.model, options.concurrency, options.timeout, *configured)


app.command("import", short_help="Make a suite of recorded traffic, of a table, or of BFCL.")(import_command.command)
app.command("export", short_help="Write a suite for promptfoo or Inspect.")(export_command.command)
