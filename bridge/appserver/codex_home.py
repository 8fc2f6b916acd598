"""What the bridge reads of the user's CODEX_HOME. It never writes there."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class CodexHome:
    """The parts of config.toml and auth.json that matter to us. `fault` tells why config.toml could not be read."""

    path: Path
    model: str | None = None
    provider: str | None = None
    variables: frozenset[str] = frozenset()
    """Environment variables that its providers read their keys from."""
    providers: tuple[str, ...] = ()
    """The providers that it defines, in its order."""
    has_login: bool = False
    fault: str | None = None


def read_codex_home(path: Path) -> CodexHome:
    """Look at a CODEX_HOME; a missing one is an empty one."""
    has_login = (path / "auth.json").is_file()
    try:
        text = (path / "config.toml").read_text(encoding="utf-8")
        config = tomllib.loads(text)
    except FileNotFoundError:
        return CodexHome(path, has_login=has_login)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        return CodexHome(path, has_login=has_login, fault=str(error))
    return CodexHome(
        path,
        model=_string(config.get("model")),
        provider=_string(config.get("model_provider")),
        variables=frozenset(_variables(config.get("model_providers"))),
        providers=tuple(_providers(config.get("model_providers"))),
        has_login=has_login,
    )


def _providers(table: Any) -> dict[str, dict[str, Any]]:
    found = table.items() if isinstance(table, dict) else ()
    return {name: provider for name, provider in found if isinstance(provider, dict)}


def _variables(providers: Any) -> list[str]:
    names: list[str] = []
    for provider in _providers(providers).values():
        names.append(provider.get("env_key", ""))
        headers = provider.get("env_http_headers")
        names.extend(headers.values() if isinstance(headers, dict) else ())
    return [name for name in names if isinstance(name, str) and name]


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
