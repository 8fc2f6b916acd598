"""`codex-bridge models`: what a request may name, who serves it, and why something is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def command(
    config: Annotated[Path | None, typer.Option(help="As for serve. [PROXY_CONFIG]")] = None,
    codex_bin: Annotated[str | None, typer.Option(help="As for serve. [CODEX_BIN]")] = None,
    codex_home: Annotated[Path | None, typer.Option(help="As for serve. [CODEX_HOME]")] = None,
    mock_only: Annotated[bool | None, typer.Option("--mock-only", help="As for serve. [PROXY_MOCK_ONLY]")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """List the models that a request may name, and the backend of each.

    The backends are asked as `serve` would: Codex is started for it, and those with discovery are called. Then come the
    patterns, and the backends that are off or do not answer, with the reason.
    """
    import orjson
    import trio

    from bridge.config_file import load_configuration
    from bridge.server.run import list_models

    settings, file = load_configuration(config=config, codex_bin=codex_bin, codex_home=codex_home, mock_only=mock_only)
    found = trio.run(list_models, settings, file)
    if json:
        typer.echo(orjson.dumps(found).decode())
        return
    _show(found)


def _show(found: dict[str, Any]) -> None:
    width = max([len(entry["model"]) for entry in found["models"]], default=0)
    for entry in found["models"]:
        typer.echo(f"{entry['model']:{width}}  {entry['backend']}")
    if found["patterns"]:
        typer.echo("\npatterns")
        for entry in found["patterns"]:
            where = f"alias of {entry['model']}" if "model" in entry else entry["backend"]
            typer.echo(f"  {entry['pattern']:{max(width - 2, 12)}}  {where}")
    if found["off"]:
        typer.echo("\nnot there")
        for name, reason in found["off"].items():
            typer.echo(f"  {name}: {reason}")
