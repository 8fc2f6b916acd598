"""`codex-bridge doctor`: is everything there? Each line is ok, or says what to do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from bridge.appserver.dialect import ChildInfo


def command(
    codex_bin: Annotated[str | None, typer.Option(help="As for serve. [CODEX_BIN]")] = None,
    codex_home: Annotated[Path | None, typer.Option(help="As for serve. [CODEX_HOME]")] = None,
    port: Annotated[int | None, typer.Option(help="As for serve. [PORT]")] = None,
) -> None:
    """Check that everything is there, and say what to do.

    Looked at are the Codex binary, its version, dialect and login, CODEX_HOME and its provider's key, the port and the
    working directory.

    Exit code 0 when everything is in order, 1 when something needs doing.
    """
    from bridge.config import load_settings

    settings = load_settings(codex_bin=codex_bin, codex_home=codex_home, port=port)
    faults = 0

    def report(what: str, fault: str | None, detail: str) -> None:
        nonlocal faults
        faults += fault is not None
        typer.echo(f"{'ok' if fault is None else '!!':3} {what:10} {detail if fault is None else fault}")

    _check_home(settings, report)
    _check_port(settings, report)
    _check_workdir(settings, report)
    _check_codex(settings, report)
    if faults:
        typer.echo(f"\n{faults} thing{'s' if faults > 1 else ''} to do. The mock models work all the same.")
        raise typer.Exit(1)


Report = Callable[[str, str | None, str], None]


def _check_home(settings: Any, report: Report) -> None:
    from bridge.appserver.codex_home import read_codex_home

    home = read_codex_home(settings.codex_home_path)
    if home.fault:
        report("CODEX_HOME", f"{home.path}/config.toml: {home.fault}", "")
    elif settings.codex_home is not None and not home.path.is_dir():
        report("CODEX_HOME", f"{home.path} does not exist. Make it, or leave CODEX_HOME unset for ~/.codex", "")
    else:
        report(
            "CODEX_HOME",
            None,
            f"{home.path} (model {home.model or 'not set'}, provider {home.provider or 'openai'})",
        )
    if home.env_key is not None:
        missing = None
        if not os.environ.get(home.env_key):
            missing = (
                f"The environment variable {home.env_key} is not set. The provider {home.provider} reads its key "
                "from it (env_key in config.toml): set it where the bridge is started"
            )
        report("env_key", missing, f"{home.env_key} is set (provider {home.provider})")


def _check_port(settings: Any, report: Report) -> None:
    from bridge.errors import ConfigError
    from bridge.http.sockets import AlreadyServing, open_sockets

    try:
        for listener in open_sockets(settings.host, settings.port):
            listener.close()
    except AlreadyServing:
        report("port", None, f"{settings.host}:{settings.port}: a codex-bridge is running there")
    except ConfigError as error:
        report("port", error.message, "")
    else:
        report("port", None, f"{settings.host}:{settings.port} is free")


def _check_workdir(settings: Any, report: Report) -> None:
    from bridge.backends.setup import prepare_workdir
    from bridge.errors import ConfigError

    try:
        prepare_workdir(settings.workdir)
    except ConfigError as error:
        report("workdir", error.message, "")
    else:
        report(
            "workdir",
            None,
            f"{settings.workdir} (sandbox {settings.sandbox_mode}, approvals {settings.approval_policy})",
        )


def _check_codex(settings: Any, report: Report) -> None:
    import trio

    from bridge.appserver.launch import NO_CODEX, find_codex

    binary = find_codex(settings.codex_bin)
    if binary is None:
        report("binary", NO_CODEX, "")
        return
    if shutil.which(binary) is None:
        report("binary", f"{binary} is not there, or cannot be run. Set CODEX_BIN to one that can", "")
        return
    report("binary", None, binary)
    trio.run(_ask_codex, settings, report)


def _tool_mode(info: ChildInfo, wanted: str) -> str:
    """How tools are offered, and where the other way is worth a try."""
    if wanted == "native" and info.has_native_tools:
        return "offered natively"
    if not info.recommends_native_tools:
        return "offered in text"
    return "offered in text; for agents with many tools PROXY_TOOL_MODE=native makes smaller prompts"


async def _ask_codex(settings: Any, report: Report) -> None:
    """Start the child as `serve` would, and read what it says of itself."""
    import trio

    from bridge.backends.app_server import NOT_LOGGED_IN
    from bridge.backends.setup import codex_launcher, supervisor
    from bridge.errors import BridgeError

    child_supervisor = supervisor(settings, codex_launcher(settings))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(child_supervisor.run)
        try:
            child = await child_supervisor.acquire()
        except BridgeError as error:
            report("start", error.message, "")
        else:
            info = child.info
            assert info is not None
            report(
                "version",
                None,
                f"{info.version or 'unknown'}{'' if info.is_codex else ' (not a Codex release)'}",
            )
            report("dialect", None, f"{info.dialect}, {len(info.methods)} methods")
            report("tools", None, _tool_mode(info, settings.tool_mode))
            for warning in child.config_warnings:
                fault = f"Codex ignores config.toml and uses its defaults: {child.config_fault}"
                report("config", fault if warning.is_fatal else None, f"Codex warns: {warning}")
            words = {"logged_in": "logged in", "not_needed": "not needed by this provider", None: "unknown"}
            missing = NOT_LOGGED_IN if child.config_fault is None else "Codex is not logged in. Fix config.toml first"
            report("login", missing if child.account.login == "missing" else None, words.get(child.account.login, ""))
            report("models", None, ", ".join(entry["id"] for entry in child.account.models) or "none listed")
        nursery.cancel_scope.cancel()
