"""How a child is started: which program, with which arguments, environment and model catalog."""

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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson
import trio

from bridge.appserver.codex_home import (
    UNLIMITED,
    CodexHome,
    build_overrides,
    build_switches,
    prepare_child_home,
    read_codex_home,
    system_off,
    write_private,
)
from bridge.appserver.dialect import ChildInfo
from bridge.appserver.process import child_environment
from bridge.appserver.roots import Roots, find_bundle, find_untrusted, prepare_roots
from bridge.errors import ConfigError, NotReady
from bridge.threads import in_thread

log = logging.getLogger("bridge.launch")

CATALOG_TIMEOUT = 15.0
CATALOG_AGE = 24 * 3600.0
"""With a login the catalog is the account's and may change; read again after a day."""

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
    has_own_home: bool = False
    """CODEX_HOME is one that the bridge has made."""
    config_fault: str | None = None
    """Why the user's config.toml cannot be read, so that the child gets none."""
    roots: Roots | None = None
    """The certificate authorities that the child trusts; None: the system's."""


class Launcher(Protocol):
    """Knows how to start one kind of child."""

    name: str

    async def command(self) -> Command:
        """The command to run now. Raises NotReady when there is none."""

    async def learn(self, info: ChildInfo, command: Command) -> bool:
        """Called after each handshake of a child started by `command`; True asks for a restart with a better one."""
        return False

    async def lacks_roots(self, command: Command) -> bool:
        """Called when a child could not connect to its provider; True asks for a restart with all certificates."""
        return False


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
    """Starts `codex app-server`, kept small by overrides, in a home of the bridge's own (see `codex_home`).

    With `native_tools` it starts Codex as the user has set it up, in the user's own home.

    A real Codex is asked once for its model catalog; from then on it is started with that catalog without the models'
    prompts and tools. The catalog is kept in `state`, by the identity of the binary. `prepare` makes the working
    directory before each start: it may be in a directory that is cleaned up now and then. Raises ConfigError.
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
        small_roots: bool = True,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self._binary = binary
        self._home = home or Path.home() / ".codex"
        self._is_named = home is not None
        self._state = state
        self._workdir = workdir
        self._native_tools = native_tools
        # With tools of its own Codex starts commands, which inherit its certificates and connect to any server.
        self._small_roots = small_roots and not native_tools
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
                "Codex's working directory cannot be used. See the bridge's log.", code="workdir_not_usable"
            ) from error
        home = read_codex_home(self._home)
        catalog = self._catalog_file(binary)
        arguments = build_overrides(
            native_tools=self._native_tools,
            catalog=catalog if catalog.is_file() else None,
            base_instructions=self._base_instructions(),
            switches=build_switches(system_off(), home.off if home.login_in_keyring else {}),
        )
        has_own_home = not self._native_tools and not home.login_in_keyring
        environment = self._environment(home)
        roots = None
        if self._small_roots and has_own_home:
            # In a thread: a bundle that has changed takes 0.1 s to read.
            roots = await in_thread(prepare_roots, home, Path(environment["CODEX_HOME"]), os.environ, find_bundle())
        return Command(
            [binary, "app-server", *arguments],
            environment | ({"SSL_CERT_FILE": str(roots.path)} if roots is not None else {}),
            str(self._workdir),
            has_own_home=has_own_home,
            # In the user's own home Codex finds it by itself.
            config_fault=home.fault if has_own_home else None,
            roots=roots,
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
                with suppress(OSError):
                    self.context_windows = _loads(_windows_file(path).read_bytes())
        return _is_fresh(path, math.inf) and not any(str(path) in argument for argument in command.argv)

    async def lacks_roots(self, command: Command) -> bool:
        if command.roots is None:
            return False
        if self._small_roots:
            why = await find_untrusted(command.roots)
            if why is None:
                return False
            log.warning(
                "Codex cannot verify its provider with the bridge's short list of certificate authorities (%s): "
                "restarting it with the system's. PROXY_CHILD_CA=system uses these from the start",
                why,
            )
            self._small_roots = False
        return True

    async def _refresh_catalog(self, binary: str, path: Path) -> None:
        home = read_codex_home(self._home)
        if _is_fresh(path, CATALOG_AGE if home.has_login else math.inf) and _windows_file(path).is_file():
            return
        catalog = await self._print_catalog(binary, home)
        if catalog is not None:
            # The child's catalog does not have the true windows, so they are stored beside it.
            write_private(_windows_file(path), orjson.dumps(context_windows(catalog)))
            write_private(path, orjson.dumps(shrink_catalog(catalog)))

    async def _print_catalog(self, binary: str, home: CodexHome) -> dict[str, Any] | None:
        """The model catalog as Codex prints it; None from a Codex that cannot (before about 0.110)."""
        for flags in [[], ["--bundled"]] if home.has_login else [["--bundled"]]:
            with trio.move_on_after(CATALOG_TIMEOUT):
                done = await trio.run_process(
                    [binary, "debug", "models", *flags],
                    capture_stdout=True,
                    check=False,
                    stderr=subprocess.DEVNULL,
                    env=self._environment(home),
                )
                catalog = _loads(done.stdout)
                models = catalog.get("models")
                if isinstance(models, list) and models and all(isinstance(entry, dict) for entry in models):
                    return catalog
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


class StandinLauncher(Launcher):
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


# The model catalog


def context_windows(catalog: Mapping[str, Any]) -> dict[str, int]:
    """The context window of each model in Codex's own catalog, in tokens."""
    windows = [(entry.get("slug"), entry.get("context_window")) for entry in catalog["models"]]
    return {slug: size for slug, size in windows if isinstance(slug, str) and type(size) is int and size > 0}


def shrink_catalog(catalog: dict[str, Any]) -> dict[str, Any]:
    """Codex's own model catalog with every model's prompt, tools and limits taken out.

    Most models are marked to get their tools inside a JavaScript tool (`code_mode_only`), with 20 kB of
    instructions; as entries with direct tools and no text they see what the client sends. Codex compacts a conversation
    by the window that stands here, and enlarges images for models that take them in original size.
    """
    models = [entry | _PLAIN for entry in catalog["models"]]
    return catalog | {"models": [*models, models[0] | _ANY_MODEL]}


_PLAIN: dict[str, Any] = {
    "base_instructions": "",
    "model_messages": None,
    "tool_mode": "direct",
    "apply_patch_tool_type": None,
    "use_responses_lite": False,
    "multi_agent_version": None,
    "experimental_supported_tools": [],
    "supports_search_tool": False,
    "context_window": UNLIMITED,
    "max_context_window": UNLIMITED,
    "auto_compact_token_limit": None,
    "default_verbosity": None,
    "supports_image_detail_original": False,
    # Codex leaves out a tier that a model does not list; whether the account has it, the provider knows.
    "service_tiers": [
        {"id": "priority", "name": "Fast", "description": ""},
        {"id": "flex", "name": "Flex", "description": ""},
    ],
}
_ANY_MODEL: dict[str, Any] = {
    # Codex takes the entry with the longest slug that a model's name begins with: this one fits all that have none.
    "slug": "",
    "display_name": "any other model",
    "description": None,
    "visibility": "none",
    "priority": 99,
    "default_reasoning_level": None,
    "supported_reasoning_levels": [],
    "default_reasoning_summary": "auto",
    "support_verbosity": True,
    "additional_speed_tiers": [],
    "upgrade": None,
    "availability_nux": None,
    "web_search_tool_type": "text",
}
"""As Codex describes a model that it does not know, except that a requested verbosity is sent."""

CATALOG_RULES = hashlib.sha256(orjson.dumps([_PLAIN, _ANY_MODEL])).hexdigest()
"""Changes with the rules above, so that a catalog made by other rules is not used."""


def _windows_file(catalog: Path) -> Path:
    return catalog.with_name(catalog.name.replace("catalog-", "context-windows-"))


def _is_fresh(path: Path, age: float) -> bool:
    return path.is_file() and time.time() - path.stat().st_mtime <= age


def _loads(data: bytes) -> dict[str, Any]:
    """An object; empty for anything else."""
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
