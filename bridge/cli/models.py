"""`turnbridge models`: the models that requests can name, their backends, and why a backend is off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from bridge.settings import Settings
    from bridge.settings.file import FileConfig
from bridge.cli.flags import Flags, setting_flags


@setting_flags(["config", "codex_bin", "codex_home", "mock_only"])
def command(flags: Flags, json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """List the models that requests can name, and their backends.

    Queries the backends as `serve` does: it starts Codex, and calls backends with discovery. After the models it lists
    the patterns, and the backends that are off or do not answer, with the reason.
    """
    import orjson
    import trio

    from bridge.settings.file import load_configuration

    settings, file = load_configuration(**flags)
    found = trio.run(_list_models, settings, file)
    if json:
        typer.echo(orjson.dumps(found).decode())
        return
    _show(found)


async def _list_models(settings: Settings, config: FileConfig) -> dict[str, Any]:
    """What `serve` would serve: models with their backends, patterns, and the backends that are off."""
    from bridge.app.app import open_app

    unused = {"log_events": None, "store": "memory"}
    async with open_app(settings.model_copy(update=unused), config) as app:
        await app.router.wait_until_known(settings.rpc_timeout)
        return app.router.describe()


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
        typer.echo("\nnot available")
        for name, reason in found["off"].items():
            typer.echo(f"  {name}: {reason}")
