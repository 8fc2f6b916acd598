"""Which backends there are, from the configuration file and the environment, and what is missing for them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bridge.backends.base import Backend
from bridge.backends.openai_compatible.presets import PRESETS, Preset
from bridge.backends.router import Router, Served
from bridge.backends.routing import MOCK, Place, Rule, Table, make_rule
from bridge.config import Settings
from bridge.config_file import BackendConfig, FileConfig
from bridge.urls import is_header_safe

ANTHROPIC_KEY = "ANTHROPIC_API_KEY"
CLAUDE_CREDENTIALS = Path(".claude/.credentials.json")
"""Where Claude Code keeps its login, below the home directory."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One backend to build. `off` tells why it cannot answer without a key that comes with the request."""

    name: str
    config: BackendConfig
    kind: str
    key: str | None = field(default=None, repr=False)
    credentials: Path | None = None
    preset: Preset | None = None
    off: str | None = None
    implied: bool = False
    """Nobody asked for it: it is there because its key is."""


def plan_backends(config: FileConfig, environment: Mapping[str, str], home: Path) -> list[Plan]:
    """All backends over HTTP, those of the file first, in its order."""
    plans = [
        _plan(name, backend, environment, home)
        for name, backend in config.backends.items()
        if backend.type != "app-server"
    ]
    kinds, names = {plan.kind for plan in plans}, set(config.backends)
    for name, backend in (
        ("anthropic", BackendConfig(type="anthropic", discovery=True)),
        ("gemini", BackendConfig(type="openai", preset="gemini", discovery=True)),
    ):
        plan = _plan(name, backend, environment, home)
        if plan.kind not in kinds and name not in names:
            plans.append(replace(plan, implied=True))
    return plans


def _plan(name: str, config: BackendConfig, environment: Mapping[str, str], home: Path) -> Plan:
    if config.type == "anthropic":
        return _plan_anthropic(name, config, environment, home)
    preset = _preset(config)
    variable = config.key_env or (preset.key_env if preset is not None else None)
    key, off = config.key, None
    if key is None and variable is not None:
        key, off = _key_of(variable, environment, name)
    return Plan(name, config, config.preset or config.type, key, preset=preset, off=off)


def _plan_anthropic(name: str, config: BackendConfig, environment: Mapping[str, str], home: Path) -> Plan:
    variable = config.key_env or ANTHROPIC_KEY
    if config.credentials is not None:
        return Plan(name, config, "anthropic", credentials=Path(config.credentials).expanduser())
    if config.key is not None:
        return Plan(name, config, "anthropic", config.key)
    key, off = _key_of(variable, environment, name)
    credentials = home / CLAUDE_CREDENTIALS
    # A login that nobody names is not sent in the clear.
    if key is None and config.key_env is None and not config.insecure_http and credentials.is_file():
        return Plan(name, config, "anthropic", credentials=credentials)
    return Plan(name, config, "anthropic", key, off=off)


def _key_of(variable: str, environment: Mapping[str, str], name: str) -> tuple[str | None, str | None]:
    """(the key in a variable, why there is none)."""
    key = environment.get(variable, "").strip()
    if not key:
        return None, f"The backend {name} is off: {variable} is not set."
    if not is_header_safe(key):
        return None, f"The backend {name} is off: {variable} holds something that is no key."
    return key, None


def _preset(config: BackendConfig) -> Preset | None:
    return PRESETS[config.preset] if config.preset is not None else None


def plan_named(name: str, environment: Mapping[str, str]) -> Plan | None:
    """A backend that is asked for by name though nobody configured it: `codex`, or a preset."""
    if name == "codex":
        return Plan(name, BackendConfig(type="codex"), "codex")
    if name in PRESETS:
        return _plan(name, BackendConfig.model_validate({"type": "openai", "preset": name}), environment, Path())
    return None


def app_server_name(config: FileConfig) -> str:
    """What the app-server is called."""
    return next((name for name, backend in config.backends.items() if backend.type == "app-server"), "app-server")


def make_router(
    mock: Backend,
    served: Sequence[Served],
    *,
    default: str | None,
    config: FileConfig,
    aliases: Mapping[str, str],
    missing: Mapping[str, str],
) -> Router:
    """The router that the configuration asks for; aliases of the environment win over those of the file."""
    both = {**config.routing.aliases, **aliases}
    return Router(mock, served, default=default, rules=_rules(config), aliases=both, missing=missing)


def route(model: str, config: FileConfig, settings: Settings, plans: Sequence[Plan]) -> tuple[str | None, str | None]:
    """(the backend that a name leads to without anybody being asked, what an alias stands for).

    One that is off comes last: then there is nobody else.
    """
    places = [Place(plan.name, plan.kind, tuple(plan.config.models), plan.off) for plan in plans]
    own = app_server_name(config)
    aliases = {**config.routing.aliases, **settings.aliases}
    table = Table([Place(MOCK), *places, Place(own)], default=own, rules=_rules(config), aliases=aliases)
    name, _ = table.unalias(model)
    backend = table.known_at_once(name, keyed=False) or table.known_at_once(name, keyed=True)
    return backend, (name if name != model else None)


def _rules(config: FileConfig) -> list[Rule]:
    patterns = config.routing.patterns.items()
    return [make_rule(pattern, backend) for backend, written in patterns for pattern in written]
