"""`turnbridge store`: checks, prepares and copies the store of responses, conversations, usage and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bridge.cli.flags import Flags, setting_flags

if TYPE_CHECKING:
    from bridge.settings import Settings
    from bridge.store.copying import Place

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

PLACE = "sqlite (the file in the state directory), the path of a file, postgresql:// URL, or configured (PROXY_STORE)."


@app.command("check")
@setting_flags(["config"])
def check(flags: Flags) -> None:
    """Open the configured store and count what is in it.

    Exit code 2 if it cannot be used, with the reason.
    """
    from bridge.store.copying import describe

    place = _place("configured", _settings(flags))
    with place.contents(create=False) as contents:
        counts = contents.count()
    typer.echo(f"ok  {place.name}: {describe({**counts, 'key': len(place.keys.read())})}")


@app.command("migrate")
@setting_flags(["config"])
def migrate(flags: Flags) -> None:
    """Create or update the tables in PostgreSQL.

    `serve` does so when it starts. Use this command where only another user of the database may create tables: run it
    with that user's URL in PROXY_STORE, before the new version of `serve` starts.
    """
    from bridge.errors import UsageError

    url = _settings(flags).database_url
    if url is None:
        raise UsageError("Nothing to migrate: PROXY_STORE is not a postgresql:// URL.")
    from bridge.store.postgres.migrations import migrate_server

    applied, version = migrate_server(url)
    typer.echo(f"schema {version}: {f'{applied} migration(s) applied' if applied else 'nothing to do'}")


@app.command("copy")
@setting_flags(["config"])
def copy(
    flags: Flags,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=PLACE)],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Likewise. It must be empty.")],
    replace: Annotated[bool, typer.Option("--replace", help="Delete everything in TARGET first.")] = False,
) -> None:
    """Copy responses, conversations, usage and keys from one store to another.

    TARGET has either everything afterwards or what it had before. Stop the bridges that use it. With `sqlite`, keys are
    copied from or to the file of `turnbridge keys`.

    Other users of this machine can read the arguments of a command. To hide a password, set PROXY_STORE to the URL and
    write `configured`.
    """
    import sys
    import time

    from bridge.errors import UsageError
    from bridge.store.copying import Counts, describe
    from bridge.store.copying import copy as copy_store

    settings = _settings(flags)
    places = [_place(each, settings) for each in (source, target)]
    if source == target:
        raise UsageError("SOURCE and TARGET are the same store.")
    shown = time.monotonic()

    def report(copied: Counts) -> None:
        nonlocal shown
        if time.monotonic() - shown > 2:
            shown = time.monotonic()
            print(f"copied so far: {describe(copied)}", file=sys.stderr)

    typer.echo(f"copied {describe(copy_store(*places, replace=replace, report=report))}")


def _settings(flags: Flags) -> Settings:
    from bridge.settings.file import load_configuration

    return load_configuration(**flags)[0]


def _place(given: str, settings: Settings) -> Place:
    """The store that an argument means."""
    from pathlib import Path

    from bridge.errors import UsageError
    from bridge.settings import key_store_file, store_file
    from bridge.settings.values import check_store, store_kind
    from bridge.store.copying import SqlitePlace, configured_place, postgres_place

    if given == "configured":
        return configured_place(settings)
    try:
        if store_kind(given) == "postgresql":
            return postgres_place(check_store(given))
    except ValueError as error:
        raise UsageError(f"Invalid URL: {error}.") from None
    if "://" in given:
        raise UsageError("Name a store that is kept: sqlite, the path of a file, or a postgresql:// URL.")
    return SqlitePlace(store_file() if given == "sqlite" else Path(given).absolute(), key_store_file())
