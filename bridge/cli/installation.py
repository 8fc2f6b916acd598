"""What is installed and configured: `turnbridge doctor` checks it, `models` lists models, `auth` shows the login."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridge.cli.flags import Flags, setting_flags

if TYPE_CHECKING:
    from bridge.appserver.dialect import ChildInfo
    from bridge.settings import Settings
    from bridge.settings.file import FileConfig


@setting_flags(["codex_bin", "codex_home", "port"])
def doctor(flags: Flags) -> None:
    """Check the installation and say what to fix.

    Checks the Codex binary with its version, dialect and login, CODEX_HOME and its provider's key, the port and the
    working directory.

    Exit code 0 when everything is in order, 1 when something needs to be fixed.
    """
    from bridge.settings import load_settings

    settings = load_settings(**flags)
    faults = 0
    checks = _check_home(settings), _check_port(settings), _check_workdir(settings), _check_codex(settings)
    for what, fault, detail in chain.from_iterable(checks):
        faults += fault is not None
        typer.echo(f"{'ok' if fault is None else '!!':3} {what:10} {fault or detail}")
    if faults:
        typer.echo(f"\n{faults} thing{'s' if faults > 1 else ''} to fix. The mock models work without it.")
        raise typer.Exit(1)


Check = tuple[str, str | None, str]
"""What was checked, what is wrong with it, and otherwise what it is."""


def _check_home(settings: Settings) -> Iterator[Check]:
    from bridge.appserver.codex_home import read_codex_home

    home, fault = read_codex_home(settings.codex_home_path), None
    if home.fault:
        fault = f"{home.path}/config.toml: {home.fault}"
    elif settings.codex_home is not None and not home.path.is_dir():
        fault = f"{home.path} does not exist. Create it, or leave CODEX_HOME unset for ~/.codex"
    detail = f"{home.path} (model {home.model or 'not set'}, provider {home.provider or 'openai'})"
    yield "CODEX_HOME", fault, detail
    if home.env_key is not None:
        missing = (
            f"The environment variable {home.env_key} is not set. The provider {home.provider} reads its key "
            "from it (env_key in config.toml): set it where the bridge is started"
        )
        is_set = os.environ.get(home.env_key)
        yield "env_key", None if is_set else missing, f"{home.env_key} is set (provider {home.provider})"


def _check_port(settings: Settings) -> Iterator[Check]:
    from bridge.errors import ConfigError
    from bridge.http.sockets import AlreadyServing, open_sockets

    address, fault, state = f"{settings.host}:{settings.port}", None, "free"
    try:
        for listener in open_sockets(settings.host, settings.port):
            listener.close()
    except AlreadyServing:
        state = "in use by a running turnbridge"
    except ConfigError as error:
        fault = error.message
    yield "port", fault, f"{address} is {state}"


def _check_workdir(settings: Settings) -> Iterator[Check]:
    from bridge.errors import ConfigError
    from bridge.routing.setup import prepare_workdir

    fault = None
    try:
        prepare_workdir(settings.workdir)
    except ConfigError as error:
        fault = error.message
    yield (
        "workdir",
        fault,
        f"{settings.workdir} (sandbox {settings.sandbox_mode}, approvals {settings.approval_policy})",
    )


def _check_codex(settings: Settings) -> Iterator[Check]:
    import trio

    from bridge.appserver.launch import NO_CODEX, find_codex

    binary = find_codex(settings.codex_bin)
    if binary is None:
        yield "binary", NO_CODEX, ""
    elif shutil.which(binary) is None:
        yield "binary", f"{binary} does not exist or is not executable. Set CODEX_BIN to the path of Codex", ""
    else:
        yield "binary", None, binary
        yield from trio.run(_ask_codex, settings)


def _tool_mode(info: ChildInfo, wanted: str) -> str:
    """How tools are offered, with a hint where the other mode may be better."""
    if wanted == "native" and info.has_native_tools:
        return "offered natively"
    if not info.recommends_native_tools:
        return "offered in text"
    return "offered in text; PROXY_TOOL_MODE=native makes smaller prompts for agents with many tools"


async def _ask_codex(settings: Settings) -> list[Check]:
    """Start the app-server as `serve` would, and read its version, login and models."""
    import trio

    from bridge.appserver.backend import NOT_LOGGED_IN
    from bridge.errors import BridgeError
    from bridge.routing.setup import codex_launcher, supervisor

    child_supervisor = supervisor(settings, codex_launcher(settings))
    checks: list[Check] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(child_supervisor.run)
        try:
            child = await child_supervisor.acquire()
        except BridgeError as error:
            checks.append(("start", error.message, ""))
        else:
            info = child.info
            assert info is not None
            release = "" if info.is_codex else " (not a Codex release)"
            checks.append(("version", None, f"{info.version or 'unknown'}{release}"))
            checks.append(("dialect", None, f"{info.dialect}, {len(info.methods)} methods"))
            checks.append(("tools", None, _tool_mode(info, settings.tool_mode)))
            for warning in child.config_warnings:
                fault = f"Codex ignores config.toml and uses its defaults: {child.config_fault}"
                checks.append(("config", fault if warning.is_fatal else None, f"Codex warns: {warning}"))
            words = {"logged_in": "logged in", "not_needed": "not needed by this provider", None: "unknown"}
            missing = NOT_LOGGED_IN if child.config_fault is None else "Codex is not logged in. Fix config.toml first"
            login = child.account.login
            checks.append(("login", missing if login == "missing" else None, words.get(login, "")))
            models = ", ".join(entry["id"] for entry in child.account.models)
            checks.append(("models", None, models or "none listed"))
        nursery.cancel_scope.cancel()
    return checks


@setting_flags(["config", "codex_bin", "codex_home", "mock_only"])
def models(flags: Flags, json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
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
    _show_models(found)


async def _list_models(settings: Settings, config: FileConfig) -> dict[str, Any]:
    """What `serve` would serve: models with their backends, patterns, and the backends that are off."""
    from bridge.app.app import open_app

    unused = {"log_events": None, "store": "memory"}
    async with open_app(settings.model_copy(update=unused), config) as app:
        await app.router.wait_until_known(settings.rpc_timeout)
        return app.router.describe()


def _show_models(found: dict[str, Any]) -> None:
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


auth = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@auth.command("status")
@setting_flags(["codex_home"])
def status(flags: Flags, json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Show the login: account, plan and expiry. Tokens are never shown.

    Exit code 0 when logged in, 1 when not.
    """
    import datetime
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


@auth.command("login")
@setting_flags(["codex_bin", "codex_home"])
def login(
    flags: Flags,
    device_auth: Annotated[
        bool, typer.Option("--device-auth", help="Log in with a code; for a machine without a browser.")
    ] = False,
    with_api_key: Annotated[bool, typer.Option("--with-api-key", help="Read an API key from stdin.")] = False,
) -> None:
    """Log in: runs `codex login`."""
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
        raise ConfigError(f"{binary} cannot be run: {error.strerror}. Set CODEX_BIN to the path of Codex.") from None
