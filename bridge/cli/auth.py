"""`codex-bridge auth`: the login that Codex and `exec --backend codex` use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.command("status")
def status(
    codex_home: Annotated[Path | None, typer.Option(help="As for serve. [CODEX_HOME; ~/.codex]")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Tell who is logged in, and until when. A token is never shown.

    Exit code 0 when there is a login, 1 when there is none.
    """
    import datetime
    import os
    import textwrap

    import orjson

    from bridge.auth.codex import NotLoggedIn, describe_auth, read_auth
    from bridge.config import load_settings

    path = load_settings(codex_home=codex_home).codex_home_path / "auth.json"
    shown = os.fsencode(path).decode("utf-8", "replace")
    try:
        about: dict[str, Any] = describe_auth(read_auth(path), datetime.datetime.now(datetime.UTC))
    except NotLoggedIn as error:
        if json:
            typer.echo(orjson.dumps({"logged_in": False, "file": shown, "message": error.message}).decode())
        else:
            typer.echo(f"{textwrap.fill(error.message, 80, break_on_hyphens=False)}\n({shown})")
        raise typer.Exit(1) from None
    about = {"logged_in": True, "file": shown} | about
    if json:
        typer.echo(orjson.dumps(about).decode())
        return
    typer.echo("logged in with ChatGPT" if about["mode"] == "chatgpt" else "logged in with an API key")
    for name in ("account_id", "plan", "expires", "last_refresh", "file"):
        if about.get(name) is not None:
            # Whatever stands in the file, it must not play with the terminal.
            value = "".join(char for char in str(about[name]) if char.isprintable())
            typer.echo(f"  {name.replace('_', ' '):13} {value}")


@app.command("login")
def login(
    device_auth: Annotated[
        bool, typer.Option("--device-auth", help="Log in with a code, on a machine without a browser.")
    ] = False,
    with_api_key: Annotated[bool, typer.Option("--with-api-key", help="Read an API key from stdin.")] = False,
    codex_bin: Annotated[str | None, typer.Option(help="As for serve. [CODEX_BIN; codex on PATH]")] = None,
    codex_home: Annotated[Path | None, typer.Option(help="As for serve. [CODEX_HOME; ~/.codex]")] = None,
) -> None:
    """Log in. This hands over to `codex login`, which knows how."""
    import os

    from bridge.appserver.launch import NO_CODEX, find_codex
    from bridge.config import load_settings
    from bridge.errors import ConfigError, UsageError

    if device_auth and with_api_key:
        raise UsageError("--device-auth and --with-api-key are two ways; choose one of them.")
    settings = load_settings(codex_bin=codex_bin, codex_home=codex_home)
    binary = find_codex(settings.codex_bin)
    if binary is None:
        raise ConfigError(NO_CODEX)
    flags = [*(["--device-auth"] if device_auth else []), *(["--with-api-key"] if with_api_key else [])]
    environment = dict(os.environ)
    if settings.codex_home is not None:
        try:
            settings.codex_home.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"CODEX_HOME {settings.codex_home} cannot be made: {error.strerror}.") from None
        environment["CODEX_HOME"] = str(settings.codex_home)
    try:
        os.execve(binary, [binary, "login", *flags], environment)  # noqa: S606 — what the user asked for
    except OSError as error:
        raise ConfigError(f"{binary} cannot be run: {error.strerror}. Set CODEX_BIN to one that can.") from None
