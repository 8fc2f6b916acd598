"""`codex-bridge lab`: test prompts that teach a model to call tools. One file per command."""

from __future__ import annotations

import typer

from bridge.cli.lab import cases, render, report, run

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.command("run")(run.command)
app.command("report")(report.command)
app.command("cases")(cases.command)
app.command("render")(render.command)
