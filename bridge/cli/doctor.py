"""`turnbridge doctor`: checks the installation; each line says ok or what to fix."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

import typer

from bridge.cli.flags import Flags, setting_flags

if TYPE_CHECKING:
    from bridge.appserver.dialect import ChildInfo
    from bridge.settings import Settings


@setting_flags(["codex_bin", "codex_home", "port"])
def command(flags: Flags) -> None:
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
        yield "binary", f"{binary} does not exist or is not executable. Set CODEX_BIN to one that is", ""
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
