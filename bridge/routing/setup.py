"""Codex from settings: `serve`, `exec` and `doctor` start it in the same way."""

from __future__ import annotations

import logging
import os
import shutil
import stat
from pathlib import Path
from typing import Any

from bridge.appserver.backend import AppServerBackend
from bridge.appserver.codex_home import CodexHome, read_codex_home
from bridge.appserver.connection import Tap
from bridge.appserver.launch import CodexLauncher, Launcher
from bridge.appserver.supervisor import Pool, Supervisor
from bridge.appserver.turn import ChildSettings, Limits
from bridge.errors import ConfigError
from bridge.ids import new_id
from bridge.settings import Settings, state_dir

log = logging.getLogger("bridge.routing")


def child_settings(settings: Settings) -> ChildSettings:
    """The part of the settings that shapes payloads."""
    return ChildSettings(
        workdir=str(settings.workdir),
        approval_policy=settings.approval_policy,
        sandbox_mode=settings.sandbox_mode,
        include_apply_patch_tool=settings.include_apply_patch_tool,
        skip_turn=settings.responses_skip_turn,
        omit_tool_manifest=settings.responses_omit_tool_manifest,
        ignore_system_prompt=settings.ignore_client_system_prompt,
        legacy_calls=settings.legacy_calls,
        native_tools=settings.native_tools,
        tool_mode=settings.tool_mode,
        web_search=settings.web_search,
        kept_threads=settings.kept_threads,
        warm_threads=settings.warm_threads,
        enforce_max_tokens=settings.enforce_max_tokens,
    )


def codex_launcher(settings: Settings) -> CodexLauncher:
    """How Codex is started under these settings."""
    return CodexLauncher(
        binary=settings.codex_bin,
        home=settings.codex_home,
        state=state_dir(),
        workdir=settings.workdir,
        native_tools=settings.native_tools,
        small_roots=settings.child_ca == "small",
        prepare=lambda: prepare_workdir(settings.workdir),
    )


def supervisor(
    settings: Settings, launcher: Launcher, *, tap: Tap | None = None, on_demand: bool = False
) -> Supervisor:
    """A supervisor of one child under these settings."""
    limits = Limits(settings.rpc_timeout, settings.first_event_timeout, settings.idle_timeout, settings.turn_timeout)
    return Supervisor(
        launcher, child_settings(settings), dialect=settings.dialect, limits=limits, tap=tap, on_demand=on_demand
    )


def app_server_backend(
    name: str, pool: Pool, settings: Settings, home: CodexHome | None = None, **options: Any
) -> AppServerBackend:
    """An app-server as a backend: Codex with the providers of its `home`, or the stand-in, which has none."""
    if home is not None:
        options |= {"providers": home.providers, "any_model": home.any_model}
    return AppServerBackend(name, pool, new_id=new_id, settings=child_settings(settings), **options)


def configured_models(settings: Settings) -> tuple[str, ...]:
    """The models that CODEX_HOME and the operator name."""
    home = read_codex_home(settings.codex_home_path)
    return (*([home.model] if home.model else ()), *settings.models)


def prepare_workdir(path: Path) -> None:
    """Create the child's working directory, private. Raises ConfigError for one that another user could control."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise ConfigError(f"PROXY_CODEX_WORKDIR {path} cannot be created: {error.strerror}") from error
    fault = None
    if not stat.S_ISDIR(status.st_mode):
        fault = "is not a directory (but a link or a file)"
    elif status.st_uid != os.geteuid():
        fault = "belongs to another user"
    elif status.st_mode & 0o022:
        fault = "can be written by other users (run chmod 700 on it)"
    if fault:
        raise ConfigError(f"PROXY_CODEX_WORKDIR: {path} {fault}. Set it to a directory of your own.")


def check_codex(settings: Settings) -> None:
    """Raise ConfigError for a CODEX_BIN that does not exist: that is a mistake, not something to wait for.

    A missing CODEX_HOME is only a warning: a login may follow, and other backends do not need it.
    """
    if settings.codex_bin and shutil.which(settings.codex_bin) is None:
        raise ConfigError(f"CODEX_BIN: {settings.codex_bin} does not exist or is not executable.")
    if settings.codex_home is not None and not settings.codex_home.is_dir():
        log.warning(
            "CODEX_HOME (--codex-home) %s is not a directory: Codex has no login and no configuration. Create it, "
            "or remove the setting to use ~/.codex",
            settings.codex_home,
        )
