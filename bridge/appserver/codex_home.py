"""The user's CODEX_HOME, and the configuration that the child gets in its place.

Codex reads more from its home than it has switches for: AGENTS.md reaches the model, MCP servers are started, `notify`
and hooks are run, each for any client's prompt. So the child sees a private directory that holds a config.toml with
what may pass, and links to the user's login. Everything else is switched off by overrides (`-c key=value`), so that the
model sees the client's messages and nothing else, and all of them: Codex must not cut an output, or replace a
conversation with a summary, behind the client's back.

The bridge never writes to the user's home. Codex does when it refreshes a login, through the link.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from bridge.errors import NotReady

SYSTEM_CONFIG = Path("/etc/codex/config.toml")
"""Codex reads this beneath the user's own config.toml, whatever CODEX_HOME is."""

OPENAI = "openai"
"""What Codex calls the provider that it uses where config.toml names none."""

UNLIMITED = 10**9
"""Tokens. The provider knows its window and reports it in a way that agents understand; Codex would cut silently."""

_LINKED = ("auth.json", ".env")
"""The login, and the file in which Codex looks for the variables that providers read their keys from."""

_PASSED = (
    "model", "model_provider", "model_providers", "oss_provider", "openai_base_url", "chatgpt_base_url",
    "cli_auth_credentials_store", "forced_login_method", "forced_chatgpt_workspace_id", "preferred_auth_method",
)  # fmt: skip
"""The settings of config.toml that decide the provider and the login.

All others change what the model sees or what runs on this machine: instructions, memories, MCP servers, `notify`,
hooks, profiles, telemetry. Listing what passes, not what is kept out, also keeps out what a later Codex adds.
"""
_PASSED_FEATURES = ("respect_system_proxy",)

_API_DEFAULTS = {"service_tier": "default", "model_verbosity": "medium"}
"""What the API does where a request asks for nothing else."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class CodexHome:
    """The parts of config.toml and auth.json that matter to us. `fault` says why config.toml could not be read."""

    path: Path
    model: str | None = None
    provider: str | None = None
    variables: frozenset[str] = frozenset()
    """Environment variables that its providers read their keys from."""
    env_key: str | None = None
    """The one that `provider` requires."""
    providers: tuple[str, ...] = ()
    """The providers that it defines, in its order."""
    any_model: bool = False
    """Its provider is not OpenAI, so Codex's own list of models does not apply."""
    has_login: bool = False
    fault: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The part of config.toml that may reach the child."""
    off: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The settings that switch the rest of it off, for a child that must run in this home itself."""
    login_in_keyring: bool = False
    """Codex stores a login in the system's keyring under the path of its home, so another home would not find it."""


def read_codex_home(path: Path) -> CodexHome:
    """Read a CODEX_HOME; a missing one is an empty one."""
    has_login = (path / "auth.json").is_file()
    try:
        config = _read_toml(path / "config.toml")
    except FileNotFoundError:
        return CodexHome(path, has_login=has_login)
    except (OSError, ValueError) as error:
        return CodexHome(path, has_login=has_login, fault=str(error))
    passed = _passed(config)
    store = config.get("cli_auth_credentials_store")
    provider = _string(passed.get("model_provider"))
    defined = _table(config.get("model_providers"))
    providers = {name: entry for name, entry in defined.items() if isinstance(entry, dict)}
    variables = [
        name
        for entry in providers.values()
        for name in (entry.get("env_key"), *_table(entry.get("env_http_headers")).values())
    ]
    return CodexHome(
        path,
        model=_string(passed.get("model")),
        provider=provider,
        variables=frozenset(name for name in variables if isinstance(name, str) and name),
        env_key=_string(providers.get(provider or "", {}).get("env_key")),
        providers=tuple(providers),
        any_model=provider not in (None, OPENAI),
        has_login=has_login,
        config=passed,
        off=_off(config),
        login_in_keyring=store == "keyring" or (store == "auto" and not has_login),
    )


def _passed(config: Mapping[str, Any]) -> dict[str, Any]:
    # The selected profile may choose the model and its provider; the rest of it is ignored.
    profile = _table(_table(config.get("profiles")).get(_string(config.get("profile")) or ""))
    chosen = {name: profile[name] for name in ("model", "model_provider") if name in profile}
    passed = {name: config[name] for name in _PASSED if name in config} | chosen
    features = {name: value for name, value in _table(config.get("features")).items() if name in _PASSED_FEATURES}
    return passed | ({"features": features} if features else {})


# The child's home


def prepare_child_home(home: CodexHome, state: Path) -> Path:
    """Create or refresh the child's home in `state` and return its path. Raises NotReady when that fails."""
    if home.login_in_keyring:
        # Everything in the user's home can be switched off except AGENTS.md.
        for name in ("AGENTS.md", "AGENTS.override.md"):
            if (home.path / name).exists():
                raise NotReady(
                    f"Codex keeps this login in the system's keyring, so it must run in {home.path} itself, and would "
                    f"show the model {name} from there. Remove that file, or set cli_auth_credentials_store = "
                    '"file" in config.toml and log in again.',
                    code="codex_home_not_usable",
                )
        return home.path
    digest = hashlib.sha256(os.fsencode(home.path)).hexdigest()[:16]
    path = state / f"codex-home-{digest}"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
        for name in _LINKED:
            _link(path / name, home.path / name)
    except OSError as error:
        raise _unwritable(error) from error
    write_private(path / "config.toml", write_toml(home.config).encode())
    return path


def write_private(path: Path, data: bytes) -> None:
    """Write a file atomically, readable by this user only. Raises NotReady when that fails."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except OSError as error:
        raise _unwritable(error) from error


def _link(link: Path, target: Path) -> None:
    """A link to `target`, which need not exist yet: a login may come later."""
    target = target.absolute()
    if link.is_symlink() and link.readlink() == target:
        return
    temporary = link.with_name(f"{link.name}.{os.getpid()}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)


def _unwritable(error: OSError) -> NotReady:
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return NotReady(f"The Codex app-server could not be started: {error.strerror}.", code="backend_start_failed")
    return NotReady(
        f"The state directory cannot be written ({error.strerror}). Set XDG_STATE_HOME to one that can.",
        code="state_not_writable",
    )


@contextmanager
def claim_home(path: Path) -> Iterator[str | None]:
    """Lock a CODEX_HOME for the duration of the block. Yields the process that holds it already, or None.

    Two bridges on one login can use up each other's one-time refresh token. The caller reports that, and does not
    refuse it: a user who runs `record` beside `serve` intends it. The lock is on the directory itself: nothing is
    written there, and the system releases it when this process dies. A directory that is missing, or on a file system
    without locks, counts as free.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    holder = None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
        except OSError:
            pass
        yield holder
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    """The process that holds the lock, if the system reports it."""
    about = os.fstat(descriptor)
    inode = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    with suppress(OSError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            # 1: FLOCK  ADVISORY  WRITE 4711 fe:01:131073 0 EOF
            words = line.split()
            if len(words) > 5 and words[1] == "FLOCK" and words[5] == inode and int(words[4]) > 0:
                return f"another bridge (process {words[4]})"
    return "another bridge"


# Overrides: the settings that the child is started with

_ALWAYS: dict[str, Any] = {
    "check_for_update_on_startup": False,
    "analytics.enabled": False,
    # An ephemeral thread stays loaded this long after its turn; the default of a minute adds up.
    "thread_unload_delay_secs": 1,
}

_OFF = (
    "include_permissions_instructions", "include_apps_instructions", "include_collaboration_mode_instructions",
    "include_environment_context", "skills.include_instructions", "skills.bundled.enabled",
    "tools.experimental_request_user_input.enabled", "features.shell_tool", "features.unified_exec",
    "features.shell_snapshot", "features.multi_agent", "features.goals", "features.view_image", "features.apps",
    "features.plugins", "features.skill_search", "features.image_generation", "features.sleep_tool",
    "features.tool_suggest", "features.hooks", "features.memories", "features.image_resize_notice",
)  # fmt: skip
_SMALL: dict[str, Any] = {
    "tool_output_token_limit": UNLIMITED,
    "web_search": "disabled",
    "project_doc_max_bytes": 0,
    **dict.fromkeys(_OFF, False),
}

_WITHOUT_CATALOG: dict[str, Any] = {
    "model_context_window": UNLIMITED,
    "model_auto_compact_token_limit": UNLIMITED,
    "model_verbosity": "medium",
}
"""For a Codex that cannot print its catalog (before about 0.120). The verbosity is the API's default, not Codex's."""


def build_overrides(
    *,
    native_tools: bool,
    catalog: Path | None = None,
    base_instructions: Path | None = None,
    switches: Mapping[str, Any] | None = None,
) -> list[str]:
    """The `-c` arguments. `base_instructions` replaces Codex's prompt for payloads that leave it null (legacy).

    `switches` are further overrides, for settings that the child would find on its own.
    """
    values = dict(_ALWAYS)
    if not native_tools:
        values |= _SMALL
        values |= switches or {}
        values |= {"model_catalog_json": str(catalog)} if catalog is not None else _WITHOUT_CATALOG
        if base_instructions is not None:
            values["model_instructions_file"] = str(base_instructions)
    return [word for name, value in values.items() for word in ("-c", f"{name}={_toml_value(value)}")]


def build_switches(*off: Mapping[str, Any]) -> dict[str, Any]:
    """These settings as overrides.

    The servers are one table, which Codex merges with those that define them. A path for each server would do for most,
    but Codex splits a path at every dot, and at the first `=`, also inside the name of a server.
    """
    servers = {name: value for each in off for name, value in _table(each.get("mcp_servers")).items()}
    values = {name: value for each in off for name, value in each.items()}
    return values | ({"mcp_servers": servers} if servers else {})


def system_off(path: Path = SYSTEM_CONFIG) -> dict[str, Any]:
    """The settings that switch off what the system's configuration sets for every user."""
    try:
        return _off(_read_toml(path))
    except (OSError, ValueError):
        return {}


def _off(config: Mapping[str, Any]) -> dict[str, Any]:
    """Only for what is present: a server that is switched off but not defined is an error to Codex, and an empty
    instruction becomes a message.
    """
    # Each server by its name: an empty table would be merged with the one that defines them.
    servers = {name: {"enabled": False} for name in _table(config.get("mcp_servers"))}
    off = {"developer_instructions": "", "notify": [], "mcp_servers": servers, **_API_DEFAULTS}
    return {name: value for name, value in off.items() if name in config}


# TOML


def write_toml(table: Mapping[str, Any]) -> str:
    """A table of `tomllib` as TOML, one line a key."""
    return "".join(f"{_toml_key(name)} = {_toml_value(value)}\n" for name, value in table.items())


def _read_toml(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    import tomllib  # not before there is such a file: many have none

    return tomllib.loads(text)


def _toml_key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _toml_value(name)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A JSON string is a TOML string, except that JSON does not escape DEL.
        return orjson.dumps(value).decode().replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_toml_key(name)} = {_toml_value(inner)}' for name, inner in value.items())}}}"
    return str(value)  # numbers, inf, nan, dates and times


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
