"""How a child is started: which program, with which arguments and environment."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson
import trio

from bridge.appserver.child_home import prepare_child_home, write_private
from bridge.appserver.codex_home import CodexHome, build_switches, read_codex_home, system_off
from bridge.appserver.dialect import ChildInfo
from bridge.appserver.overrides import CATALOG_RULES, build_overrides, shrink_catalog
from bridge.appserver.process import child_environment
from bridge.errors import ConfigError, NotReady

log = logging.getLogger("bridge.launch")

CATALOG_TIMEOUT = 15.0
CATALOG_AGE = 24 * 3600.0
"""With a login the catalog is the account's and may change; asked for again after a day."""

NO_CODEX = (
    "No Codex was found. In a checkout, scripts/serve installs one; otherwise `npm install -g @openai/codex`, "
    "or set CODEX_BIN to a program that speaks its app-server protocol."
)


@dataclass(frozen=True, slots=True)
class Command:
    """A child's command line, whole environment and directory."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None = None
    config_fault: str | None = None
    """Why the user's config.toml cannot be read, so that the child gets none."""


class Launcher(Protocol):
    """Knows how to start one kind of child."""

    name: str

    async def command(self) -> Command:
        """The command to run now. Raises NotReady when there is none."""

    async def learn(self, info: ChildInfo, command: Command) -> bool:
        """Told after each handshake of a child started by `command`; True asks for a restart with a better one."""


def find_codex(setting: str | None) -> str | None:
    """The Codex to run: CODEX_BIN, else `codex` on PATH, else the one from the `codex` extra."""
    if setting:
        return shutil.which(setting) or setting
    if on_path := shutil.which("codex"):
        return on_path
    try:
        from codex_cli_bin import bundled_codex_path

        return str(bundled_codex_path())
    except (ImportError, FileNotFoundError):
        return None


class CodexLauncher:
    """Starts `codex app-server`, kept small by overrides, in a home of the bridge's own (see `child_home`).

    With `native_tools` it starts Codex as the user has set it up, in the user's own home.

    A real Codex is asked once for its model catalog; from then on it is started with that catalog without the models'
    prompts and tools. The catalog is kept in `state`, by the identity of the binary. `prepare` makes the working
    directory before each start: it may be in a place that is cleaned up now and then. Raises ConfigError.
    """

    name = "codex"

    def __init__(
        self,
        *,
        binary: str | None,
        home: Path | None,
        state: Path,
        workdir: Path,
        native_tools: bool = False,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self._binary = binary
        self._home = home or Path.home() / ".codex"
        self._is_named = home is not None
        self._state = state
        self._workdir = workdir
        self._native_tools = native_tools
        self._prepare = prepare
        self._asked = False
        self._asking = trio.Lock()
        self.context_windows: dict[str, int] = {}
        """The models' context windows in tokens, as far as Codex has reported them."""

    async def command(self) -> Command:
        binary = find_codex(self._binary)
        if binary is None:
            raise NotReady(NO_CODEX, code="codex_not_found")
        try:
            self._prepare()
        except ConfigError as error:
            log.error("%s", error.message)
            raise NotReady(
                "Codex's working directory cannot be used; the bridge's log tells why.", code="workdir_not_usable"
            ) from error
        home = read_codex_home(self._home)
        catalog = self._catalog_file(binary)
        arguments = build_overrides(
            native_tools=self._native_tools,
            catalog=catalog if catalog.is_file() else None,
            base_instructions=self._base_instructions(),
            switches=build_switches(system_off(), home.off if home.login_in_keyring else {}),
        )
        return Command(
            [binary, "app-server", *arguments],
            self._environment(home),
            str(self._workdir),
            # In the user's own home Codex finds it by itself.
            config_fault=None if self._native_tools or home.login_in_keyring else home.fault,
        )

    async def learn(self, info: ChildInfo, command: Command) -> bool:
        if not info.is_codex or self._native_tools:
            return False
        binary = command.argv[0]
        path = self._catalog_file(binary)
        async with self._asking:  # several children may have started together
            if not self._asked:
                self._asked = True
                await self._refresh_catalog(binary, path)
                self.context_windows = _read_windows(_windows_file(path))
        return _is_fresh(path, math.inf) and not any(str(path) in argument for argument in command.argv)

    async def _refresh_catalog(self, binary: str, path: Path) -> None:
        has_login = read_codex_home(self._home).has_login
        if _is_fresh(path, CATALOG_AGE if has_login else math.inf) and _windows_file(path).is_file():
            return
        catalog = await self._ask_catalog(binary, has_login)
        if catalog is not None:
            # The child's catalog does not have the true windows, so they are stored beside it.
            write_private(_windows_file(path), orjson.dumps(context_windows(catalog)))
            write_private(path, orjson.dumps(shrink_catalog(catalog)))

    async def _ask_catalog(self, binary: str, has_login: bool) -> dict[str, Any] | None:
        """The model catalog as Codex prints it; None from a Codex that cannot (before about 0.110)."""
        attempts = [[], ["--bundled"]] if has_login else [["--bundled"]]
        for flags in attempts:
            with trio.move_on_after(CATALOG_TIMEOUT):
                done = await trio.run_process(
                    [binary, "debug", "models", *flags],
                    capture_stdout=True,
                    check=False,
                    stderr=subprocess.DEVNULL,
                    env=self._environment(read_codex_home(self._home)),
                )
                try:
                    catalog = orjson.loads(done.stdout)
                except orjson.JSONDecodeError:
                    continue
                if _is_catalog(catalog):
                    return dict(catalog)
        return None

    def _environment(self, home: CodexHome) -> dict[str, str]:
        extra = {}
        if not self._native_tools:
            path = prepare_child_home(home, self._state)
            extra["CODEX_HOME"] = str(path)
            if path != home.path:
                # Threads, memories and queues are in these databases: the user's own stay the user's.
                extra["CODEX_SQLITE_HOME"] = str(path)
        elif self._is_named:  # it must exist then; Codex makes its default one by itself
            extra["CODEX_HOME"] = str(self._home)
        return child_environment(os.environ, also=home.variables, extra=extra)

    def _catalog_file(self, binary: str) -> Path:
        real = Path(binary).resolve()
        try:
            status = real.stat()
            identity = f"{real}\0{status.st_size}\0{status.st_mtime_ns}\0{self._home}\0{CATALOG_RULES}"
        except OSError:
            identity = str(real)
        digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
        return self._state / f"catalog-{digest}.json"

    def _base_instructions(self) -> Path:
        """A file that stands for "no prompt": Codex refuses an empty one."""
        path = self._state / "base-instructions.md"
        if not path.is_file():
            write_private(path, b".")
        return path


class StandinLauncher:
    """Starts the built-in app-server, which needs no Codex, no account and no network."""

    name = "mock"

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments

    async def command(self) -> Command:
        # -P: not from the directory that we happen to be in.
        argv = [sys.executable, "-P", "-m", "bridge", "app-server", *self._arguments]
        # The package may be run from a checkout that only the path knows.
        path = os.pathsep.join(entry for entry in sys.path if entry)
        return Command(argv, child_environment(os.environ, extra={"PYTHONPATH": path}))

    async def learn(self, info: ChildInfo, command: Command) -> bool:
        return False


def context_windows(catalog: Mapping[str, Any]) -> dict[str, int]:
    """The context window of each model in Codex's own catalog, in tokens."""
    told = [(entry.get("slug"), entry.get("context_window")) for entry in catalog["models"]]
    return {slug: size for slug, size in told if isinstance(slug, str) and type(size) is int and size > 0}


def _windows_file(catalog: Path) -> Path:
    return catalog.with_name(catalog.name.replace("catalog-", "context-windows-"))


def _read_windows(path: Path) -> dict[str, int]:
    try:
        found = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_fresh(path: Path, age: float) -> bool:
    return path.is_file() and time.time() - path.stat().st_mtime <= age


def _is_catalog(value: Any) -> bool:
    models = value.get("models") if isinstance(value, dict) else None
    return isinstance(models, list) and bool(models) and all(isinstance(entry, dict) for entry in models)
