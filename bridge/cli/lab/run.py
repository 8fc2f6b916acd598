"""`codex-bridge lab run`: ask all cells, keep their results, report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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
    SuitePath,
    Tags,
)


def command(
    suite: SuitePath,
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="A model to ask; may be given several times.")
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
    repeat: Annotated[int, typer.Option("--repeat", "-n", min=1, help="How often each case is asked.")] = 5,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, max=256, help="Requests at a time.")] = 4,
    results: Annotated[
        Path | None,
        typer.Option(
            help="Where results are kept, a line each; a run that was broken off goes on. "
            "[lab/TIME.jsonl in the state directory; with --from LOG.results.jsonl, written anew]"
        ),
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option("--from", metavar="LOG", help="Score the answers in this event log again; nobody is asked."),
    ] = None,
    max_requests: Annotated[int | None, typer.Option(min=1, help="Ask no more than so many times.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Ask no more once so many tokens are spent.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that an answer may take.")] = 180,
    keep_going: Annotated[
        bool,
        typer.Option(
            "--keep-going",
            help="Ask on after a permanent error (not logged in, wrong key, no quota, unknown model).",
        ),
    ] = False,
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
    mock_only: Annotated[bool | None, typer.Option("--mock-only", help="As for serve. [PROXY_MOCK_ONLY]")] = None,
    codex_bin: Annotated[str | None, typer.Option(help="As for serve. [CODEX_BIN]")] = None,
    codex_home: Annotated[Path | None, typer.Option(help="As for serve. [CODEX_HOME]")] = None,
    dialect: Annotated[str | None, typer.Option(help="As for serve. [PROXY_DIALECT]")] = None,
    config: Annotated[Path | None, typer.Option(help="As for serve. [PROXY_CONFIG]")] = None,
    log_events: Annotated[
        str | None, typer.Option(metavar="DIR|FILE", help="Keep an event log, to be scored again with --from.")
    ] = None,
) -> None:
    """Ask every case in every variant of every model, score the answers, and tell how variants compare.

    Results are kept as they come: the same command with the same --results goes on where it was broken off. Errors of
    the machinery are counted apart and tried again then; a permanent one ends the run. More cases, variants, models and
    repetitions may be added.

    Exit codes: 0, 1 (something failed), 2 (typed wrong, a bad suite), 100 (a threshold or the baseline was missed),
    130 (Ctrl-C; the results so far are kept).
    """
    from bridge.cli.lab.reporting import Reports, Thresholds
    from bridge.cli.lab.running import Wanted, run_lab
    from bridge.config_file import load_configuration
    from bridge.errors import UsageError
    from bridge.lab.variant import SHIPPED

    if from_ is not None and results is None:
        # Its whole name, beside it: no two logs have the same.
        results = Path(f"{from_}.results.jsonl")
    if from_ is None and not model:
        raise UsageError("--model is missing: name at least one. `codex-bridge models` lists them.")
    flags: dict[str, Any] = {
        "codex_bin": codex_bin,
        "codex_home": codex_home,
        "mock_only": mock_only,
        "dialect": dialect,
        "config": config,
        "log_events": log_events,
        "store": "memory",
    }
    settings, file = load_configuration(**flags)
    wanted = Wanted(
        suite=suite,
        cases=case,
        categories=category,
        tags=tag,
        models=tuple(dict.fromkeys(model or ())),
        variants=tuple(variant or (SHIPPED if from_ is not None else ("spec",))),
        repeat=repeat,
        concurrency=concurrency,
        results=results,
        log=from_,
        max_requests=max_requests,
        max_tokens=max_tokens,
        timeout=timeout,
        keep_going=keep_going,
    )
    reports = Reports(html=html, junit=junit, json=json, csv=csv, markdown=markdown)
    thresholds = Thresholds(min_pass=min_pass, min_clean=min_clean, max_errors=max_errors, baseline=baseline)
    thresholds.check()
    raise typer.Exit(run_lab(wanted, settings, file, reports, thresholds))
