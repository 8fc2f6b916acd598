"""`turnbridge lab`: test prompts that teach a model to call tools."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import typer

if TYPE_CHECKING:
    from bridge.lab.case import Case
    from bridge.lab.report import Reports
    from bridge.settings import Settings
    from bridge.settings.file import FileConfig

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_Command: TypeAlias = Callable[..., None]
SuitePath = Annotated[
    Path, typer.Argument(metavar="SUITE", help="A YAML or JSON file of cases, or a directory.", show_default=False)
]


def _option(kind: Any, help: str, *names: str, default: Any = None, **more: Any) -> tuple[Any, Any]:
    return Annotated[kind, typer.Option(*names, help=help, **more)], default


def _options(name: str, build: Callable[..., Any], **declared: tuple[Any, Any]) -> Callable[[_Command], _Command]:
    """Give a command these options; it gets what `build` makes of their values as its parameter `name`."""

    def decorate(command: _Command) -> _Command:
        def run(**given: Any) -> None:
            built = build(**{each: given.pop(each) for each in declared})
            command(**{name: built}, **given)

        later = {"Reports": object, "Settings": object, "FileConfig": object}
        own = inspect.signature(command, locals=later, eval_str=True).parameters.values()
        parameters = [each.replace(kind=each.KEYWORD_ONLY) for each in own if each.name != name]
        for each, (annotation, default) in declared.items():
            parameters.append(
                inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            )
        run.__doc__, run.__name__, run.__module__ = command.__doc__, command.__name__, command.__module__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate


class Choice(NamedTuple):
    """Which cases of a suite are wanted."""

    case: list[str] | None
    category: list[str] | None
    tag: list[str] | None

    def cases(self, suite: Path) -> dict[str, Case]:
        """The chosen cases by id.

        Raises UsageError for a suite with faults, for an option that matches no case, and if no case is left.
        """
        from bridge.errors import UsageError
        from bridge.lab.suite import did_you_mean, load_suite

        chosen = list(every := load_suite(suite).cases)
        names: dict[str, Callable[[Case], list[str]]] = {
            "case": lambda case: [case.id],
            "category": lambda case: [case.category],
            "tag": lambda case: list(case.tags),
        }
        for option, patterns in self._asdict().items():
            known = [name for case in every for name in names[option](case)]
            for pattern in patterns or ():
                if not any(fnmatchcase(name, pattern) for name in known):
                    near = did_you_mean(pattern, dict.fromkeys(known))
                    raise UsageError(f"--{option} {pattern}: no case of {suite} matches{near or '.'}")
            if patterns:
                chosen = [
                    case
                    for case in chosen
                    if any(fnmatchcase(name, pattern) for name in names[option](case) for pattern in patterns)
                ]
        if not chosen:
            raise UsageError(f"No case of {suite} matches all options.")
        return {case.id: case for case in chosen}


_choice = _options(
    "choice",
    Choice,
    case=_option(list[str] | None, "Only cases that match; * and ? are wildcards.", "--case", metavar="ID"),
    category=_option(list[str] | None, "Only this category; * and ? are wildcards.", "--category", metavar="NAME"),
    tag=_option(list[str] | None, "Only cases with this tag; * and ? are wildcards.", "--tag", metavar="TAG"),
)


def _reports_from(**given: Any) -> Reports:
    from bridge.lab.report import Reports

    files = {name: path for name in _FORMATS if (path := given.pop(name)) is not None}
    return Reports(files, **given)


_FORMATS = {
    "html": _option(Path | None, "Write a report as one HTML file."),
    "junit": _option(Path | None, "Write a report as JUnit XML."),
    "json": _option(Path | None, "Write a report as JSON, which can be a --baseline."),
    "csv": _option(Path | None, "Write all results as CSV."),
    "markdown": _option(Path | None, "Write a report as Markdown."),
}
_reports = _options(
    "reports",
    _reports_from,
    **_FORMATS,
    baseline=_option(Path | None, "An earlier --json report. Exit with code 100 if a case got worse."),
    min_pass=_option(float | None, "Percent of samples of each model and variant that must pass.", min=0, max=100),
    min_clean=_option(float | None, "Percent of answers with calls that must have a clean form.", min=0, max=100),
    max_errors=_option(float, "Percent of requests that may fail with an error.", min=0, max=100, default=5),
)


def _configuration_from(**given: Any) -> tuple[Settings, FileConfig]:
    from bridge.settings.file import load_configuration

    return load_configuration(**given, store="memory")


_configuration = _options(
    "configuration",
    _configuration_from,
    mock_only=_option(bool | None, "As for serve. [PROXY_MOCK_ONLY]", "--mock-only"),
    codex_bin=_option(str | None, "As for serve. [CODEX_BIN]"),
    codex_home=_option(Path | None, "As for serve. [CODEX_HOME]"),
    dialect=_option(str | None, "As for serve. [PROXY_DIALECT]"),
    config=_option(Path | None, "As for serve. [PROXY_CONFIG]"),
    log_events=_option(str | None, "Keep an event log, which --from can score again.", metavar="DIR|FILE"),
)


_keep_going = "Continue after a permanent error (not logged in, wrong key, no quota, unknown model)."
_limits = _options(
    "limits",
    dict,
    repeat=_option(int, "How often to ask each case.", "--repeat", "-n", min=1, default=5),
    concurrency=_option(int, "Parallel requests.", "--concurrency", "-c", min=1, max=256, default=4),
    max_requests=_option(int | None, "Stop after this many requests.", min=1),
    max_tokens=_option(int | None, "Stop when this many tokens are used.", min=1),
    timeout=_option(float, "Seconds to wait for an answer.", min=1, default=180),
    keep_going=_option(bool, _keep_going, "--keep-going", default=False),
)


@app.command(short_help="Ask models, score the answers and compare variants.")
@_configuration
@_reports
@_choice
@_limits
def run(
    suite: SuitePath,
    limits: dict[str, Any],
    choice: Choice,
    reports: Reports,
    configuration: tuple[Settings, FileConfig],
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="A model to ask. Can be given several times.")
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            "--variant",
            "-V",
            help="spec, no-bad-example, short, json-args-object, nonce-tag, native, or a .yaml file. "
            "[spec; with --from all of these]",
        ),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            help="Where to keep results, one line each. An existing file is continued. "
            "[lab/TIME.jsonl in the state directory; with --from LOG.results.jsonl, overwritten]"
        ),
    ] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="LOG", help="Score the answers in this event log; ask no model.")
    ] = None,
) -> None:
    """Ask every case in every variant of every model, score the answers and compare the variants.

    Results are kept as they come: the same command with the same --results continues an interrupted run. It asks
    requests that failed again; a permanent error ends the run. Cases, variants, models and repetitions can be added.

    Exit codes: 0; 1 (something failed); 2 (wrong usage or a faulty suite); 100 (a threshold or the baseline was
    missed); 130 (Ctrl-C; results are kept).
    """
    from bridge.errors import UsageError
    from bridge.lab.run import RunOptions, run_lab
    from bridge.lab.variant import SHIPPED, find_variants

    if from_ is not None and results is None:
        # The whole name of the log, so that no two logs share a file.
        results = Path(f"{from_}.results.jsonl")
    if from_ is None and not model:
        raise UsageError("Missing --model. Name at least one; `turnbridge models` lists them.")
    options = RunOptions(
        suite=suite,
        cases=choice.cases(suite),
        narrowed=any(choice),
        models=tuple(dict.fromkeys(model or ())),
        variants=find_variants(variant or (SHIPPED if from_ is not None else ("spec",))),
        results=results,
        log=from_,
        **limits,
    )
    raise typer.Exit(run_lab(options, *configuration, reports))


@app.command(short_help="Show the results of a run and write reports.")
@_reports
@_choice
def report(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="Results of `lab run`.", show_default=False)],
    choice: Choice,
    reports: Reports,
    suite: Annotated[Path | None, typer.Option(help="The suite of the run. [the path in the results]")] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option("--variant", "-V", help="A .yaml file of a variant in the results; columns follow this order."),
    ] = None,
) -> None:
    """Show the results of a run, also while it is running, and write reports. No model is asked.

    A report to `-` goes to stdout and replaces the table.

    Exit codes: 0; 1 (a report could not be written); 2 (wrong usage, or no results in the file); 100 (a threshold or
    the baseline was missed).
    """
    from bridge.errors import UsageError
    from bridge.lab.case import some
    from bridge.lab.report import report as report_results
    from bridge.lab.result import Only, ResultFile
    from bridge.lab.variant import find_variants
    from bridge.terminal import say

    file = ResultFile(results)
    reports.check(results)
    known = file.known("cases")
    recorded = str(file.header().get("suite") or "")
    chosen: dict[str, Case] = {}
    if suite is not None or (recorded and Path(recorded).exists()):
        chosen = choice.cases(suite or Path(recorded))
        changed = [name for name, case in chosen.items() if known.get(name, case.fingerprint) != case.fingerprint]
        if changed:
            say("note", f"{len(changed)} case(s) have changed since the run: {some(changed)}")
    elif any(choice):
        raise UsageError("The suite has moved. Name it with --suite.")
    else:
        say("note", "the suite has moved; without --suite the report has no categories and no explanations")
    only = Only(chosen) if suite is not None or any(choice) else Only()
    # How many results a complete run would have; 0 if the file does not say.
    asked = [name for name in known if not only.cases or name in only.cases]
    plans = [plan for plan in file.known("plan").values() if isinstance(plan, dict)]
    planned = len(asked) * sum(number for plan in plans for number in plan.values() if isinstance(number, int))
    raise typer.Exit(report_results(file, chosen, find_variants(variant or ()), reports, only=only, planned=planned))


@app.command(short_help="Check a suite and list its cases.")
@_choice
def cases(suite: SuitePath, choice: Choice) -> None:
    """Check a suite and list its cases: category, id, tools and expected calls. No model is asked."""
    from bridge.log.commands.terminal import fit, printing
    from bridge.terminal import escape_line as one_line

    chosen = choice.cases(suite).values()
    with printing() as screen:
        for each in chosen:
            expected = ", ".join(call.name for call in each.expect.calls) or "no call"
            tools = f"{len(each.tools)} tool{'' if len(each.tools) == 1 else 's'}"
            line = f"{fit(each.category, 20)} {fit(each.id, 32)} {fit(tools, 8)} {one_line(expected)}"
            screen.line(fit(line, screen.width).rstrip() if screen.on_terminal else line)
        screen.line(f"{len(chosen)} case(s) in {len({each.category for each in chosen})} categories")


@app.command(short_help="Print the text that a variant injects.")
@_choice
def render(
    suite: SuitePath,
    choice: Choice,
    variant: Annotated[str, typer.Option("--variant", "-V", help="A shipped variant, or a .yaml file.")] = "spec",
) -> None:
    """Print the exact text that a variant injects for the tools of a case. Its size goes to stderr.

    Of several cases each distinct text is printed once. A newline follows each, as on a terminal.
    """
    import os

    from bridge.core.turn import estimate_text
    from bridge.lab.variant import find_variant
    from bridge.log.commands.terminal import BROKEN_PIPE
    from bridge.terminal import STDOUT, StdoutClosed, say, write_stdout

    chosen, found = choice.cases(suite).values(), find_variant(variant)
    texts: dict[str, list[str]] = {}
    for each in chosen:
        texts.setdefault(found.text_for(each), []).append(each.id)
    end = "\n" if len(texts) > 1 or os.isatty(STDOUT) else ""
    for text, ids in texts.items():
        shown = ", ".join(ids[:4]) + (f" and {len(ids) - 4} more" if len(ids) > 4 else "")
        say("note", f"{found.name} for {shown}: {len(text):,} characters, about {estimate_text(text):,} tokens")
        try:
            write_stdout((text + end if text else "").encode("utf-8", "backslashreplace"))
        except StdoutClosed:
            raise typer.Exit(BROKEN_PIPE) from None
