"""`codex-bridge log`: look at event logs. One file per command."""

from __future__ import annotations

import typer

from bridge.cli.log import diff, export, ls, redact, show, stats, tail, verify

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.command("ls")(ls.command)
app.command("show")(show.command)
app.command("tail")(tail.command)
app.command("stats")(stats.command)
app.command("diff")(diff.command)
app.command("verify")(verify.command)
app.command("export")(export.command)
app.command("redact")(redact.command)
