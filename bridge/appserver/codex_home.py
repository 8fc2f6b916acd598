"""The user's CODEX_HOME: what the bridge reads from it, and which settings of its config.toml reach the child.

The bridge never writes there. Codex itself does when it refreshes a login: see `child_home`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

SYSTEM_CONFIG = Path("/etc/codex/config.toml")
"""Codex reads this beneath the user's own config.toml, whatever CODEX_HOME is."""

OPENAI = "openai"
"""What Codex calls the provider that it uses where config.toml names none."""

_PASSED = (
    "model",
    "model_provider",
    "model_providers",
    "oss_provider",
    "openai_base_url",
    "chatgpt_base_url",
    "cli_auth_credentials_store",
    "forced_login_method",
    "forced_chatgpt_workspace_id",
    "preferred_auth_method",
)
"""The settings of config.toml that decide who answers and who is logged in.

All others change what the model sees or what runs on this machine: instructions, memories, MCP servers, `notify`,
hooks, profiles, telemetry. Listing what passes, not what is kept out, also keeps out what a later Codex adds.
"""
_PASSED_FEATURES = ("respect_system_proxy",)

_API_DEFAULTS = {"service_tier": "default", "model_verbosity": "medium"}
"""What the API does where a request asks for nothing else."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class CodexHome:
    """The parts of config.toml and auth.json that matter to us. `fault` tells why config.toml could not be read."""

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
    """Its provider is not OpenAI, so that Codex's own list of models says nothing about it."""
    has_login: bool = False
    fault: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The part of config.toml that may reach the child."""
    off: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The settings that switch the rest of it off, for a child that must run in this home itself."""
    login_in_keyring: bool = False
    """Codex stores a login in the system's keyring under the path of its home, so another home would not find it."""


def read_codex_home(path: Path) -> CodexHome:
    """Look at a CODEX_HOME; a missing one is an empty one."""
    has_login = (path / "auth.json").is_file()
    try:
        config = _read_toml(path / "config.toml")
    except FileNotFoundError:
        return CodexHome(path, has_login=has_login)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        return CodexHome(path, has_login=has_login, fault=str(error))
    passed = _passed(config)
    store = config.get("cli_auth_credentials_store")
    provider = _string(passed.get("model_provider"))
    providers = _table(config.get("model_providers"))
    return CodexHome(
        path,
        model=_string(passed.get("model")),
        provider=provider,
        variables=frozenset(_variables(providers)),
        env_key=_string(_table(providers.get(provider or "")).get("env_key")),
        providers=tuple(name for name, entry in providers.items() if isinstance(entry, dict)),
        any_model=provider not in (None, OPENAI),
        has_login=has_login,
        config=passed,
        off=_off(config),
        login_in_keyring=store == "keyring" or (store == "auto" and not has_login),
    )


def system_off(path: Path = SYSTEM_CONFIG) -> dict[str, Any]:
    """The settings that switch off what the system's configuration sets for every user."""
    try:
        return _off(_read_toml(path))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}


def build_switches(*off: Mapping[str, Any]) -> dict[str, str]:
    """These settings as overrides, key and TOML value.

    The servers are one table, which Codex merges with those that define them. A path for each server would do for most,
    but Codex splits a path at every dot, and at the first `=`, also inside the name of a server.
    """
    servers = {name: value for each in off for name, value in _table(each.get("mcp_servers")).items()}
    values = {name: value for each in off for name, value in each.items()}
    return {
        name: _toml_value(value) for name, value in (values | ({"mcp_servers": servers} if servers else {})).items()
    }


def write_toml(table: Mapping[str, Any]) -> str:
    """A table of `tomllib` as TOML, one line a key."""
    return "".join(f"{_toml_key(name)} = {_toml_value(value)}\n" for name, value in table.items())


def _passed(config: Mapping[str, Any]) -> dict[str, Any]:
    # The selected profile may choose the model and its provider; the rest of it is ignored.
    profile = _table(_table(config.get("profiles")).get(_string(config.get("profile")) or ""))
    chosen = {name: profile[name] for name in ("model", "model_provider") if name in profile}
    passed = {name: config[name] for name in _PASSED if name in config} | chosen
    features = {name: value for name, value in _table(config.get("features")).items() if name in _PASSED_FEATURES}
    return passed | ({"features": features} if features else {})


def _off(config: Mapping[str, Any]) -> dict[str, Any]:
    """Only for what is present: a server that is switched off but not defined is an error to Codex, and an empty
    instruction becomes a message.
    """
    # Each server by its name: an empty table would be merged with the one that defines them.
    servers = {name: {"enabled": False} for name in _table(config.get("mcp_servers"))}
    off = {"developer_instructions": "", "notify": [], "mcp_servers": servers, **_API_DEFAULTS}
    return {name: value for name, value in off.items() if name in config}


def _variables(providers: Any) -> list[str]:
    names: list[str] = []
    for provider in _table(providers).values():
        if not isinstance(provider, dict):
            continue
        names.append(provider.get("env_key", ""))
        names.extend(_table(provider.get("env_http_headers")).values())
    return [name for name in names if isinstance(name, str) and name]


def _read_toml(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


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
