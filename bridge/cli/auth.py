"""`turnbridge auth`: the login that Codex and `exec --backend codex` use."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bridge.cli.flags import Flags, setting_flags

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.command("status")
@setting_flags(["codex_home"])
def status(flags: Flags, json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Show the login: account, plan and expiry. Tokens are never shown.

    Exit code 0 when logged in, 1 when not.
    """
    import datetime
    import os
    import textwrap

    import orjson

    from bridge.settings import load_settings
    from bridge.upstream.codex import FILE, NotLoggedIn, describe_auth

    path = load_settings(**flags).codex_home_path / "auth.json"
    shown = os.fsencode(path).decode("utf-8", "replace")
    try:
        about: dict[str, Any] = describe_auth(FILE.read(path), datetime.datetime.now(datetime.UTC))
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
            # The file may contain escape sequences for the terminal.
            value = "".join(char for char in str(about[name]) if char.isprintable())
            typer.echo(f"  {name.replace('_', ' '):13} {value}")


@app.command("login")
@setting_flags(["codex_bin", "codex_home"])
def login(
    flags: Flags,
    device_auth: Annotated[
        bool, typer.Option("--device-auth", help="Log in with a code; for a machine without a browser.")
    ] = False,
    with_api_key: Annotated[bool, typer.Option("--with-api-key", help="Read an API key from stdin.")] = False,
) -> None:
    """Log in: runs `codex login`."""
    import os

    from bridge.appserver.launch import NO_CODEX, find_codex
    from bridge.errors import ConfigError, UsageError
    from bridge.settings import load_settings

    if device_auth and with_api_key:
        raise UsageError("Use either --device-auth or --with-api-key, not both.")
    settings = load_settings(**flags)
    binary = find_codex(settings.codex_bin)
    if binary is None:
        raise ConfigError(NO_CODEX)
    options = [*(["--device-auth"] if device_auth else []), *(["--with-api-key"] if with_api_key else [])]
    environment = dict(os.environ)
    if settings.codex_home is not None:
        try:
            settings.codex_home.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"CODEX_HOME {settings.codex_home} cannot be created: {error.strerror}.") from None
        environment["CODEX_HOME"] = str(settings.codex_home)
    try:
        os.execve(binary, [binary, "login", *options], environment)  # noqa: S606 — the user asked for it
    except OSError as error:
        raise ConfigError(f"{binary} cannot be run: {error.strerror}. Set CODEX_BIN to one that can.") from None
