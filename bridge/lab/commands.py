"""`turnbridge lab`: test prompts that teach a model to call tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bridge.cli.flags import Flags, dataclass_flags
from bridge.lab.options import Choice, ReportOptions, RunOptions

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

SuitePath = Annotated[
    Path, typer.Argument(metavar="SUITE", help="A YAML or JSON file of cases, or a directory.", show_default=False)
]


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

    raise typer.Exit(run_lab(suite, RunOptions(**flags)))


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
    from bridge.lab.case import Case, some
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
    from bridge.lab.variant import find_variant
    from bridge.log.commands.terminal import BROKEN_PIPE
    from bridge.terminal import STDOUT, StdoutClosed, say, write_stdout

    chosen, found = Choice(**flags).cases(suite).values(), find_variant(variant)
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
