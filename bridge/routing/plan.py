"""Which backends to build, from the configuration file and the environment, and which keys are missing. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bridge.core.models import MOCK, Rule, Table, Target, make_rule
from bridge.core.prices import Price, Prices
from bridge.protocols.chat.presets import PRESETS, Preset
from bridge.settings import Settings
from bridge.settings.file import BackendConfig, FileConfig
from bridge.urls import is_header_safe

ANTHROPIC_KEY = "ANTHROPIC_API_KEY"
CLAUDE_CREDENTIALS = Path(".claude/.credentials.json")
"""Where Claude Code keeps its login, below the home directory."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One backend to build. With a `disabled_reason` it serves only requests that bring their own key."""

    name: str
    config: BackendConfig
    kind: str
    key: str | None = field(default=None, repr=False)
    credentials: Path | None = None
    preset: Preset | None = None
    disabled_reason: str | None = None
    implied: bool = False
    """Not configured: present because its key is."""

    @property
    def target(self) -> Target:
        return Target(self.name, self.kind, tuple(self.config.models), self.disabled_reason)


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
    preset = PRESETS[config.preset] if config.preset is not None else None
    plan = Plan(name, config, config.preset or config.type, config.key, preset=preset)
    variable = config.key_env or (preset.key_env if preset is not None else None)
    is_anthropic = config.type == "anthropic"
    if is_anthropic and config.credentials is not None:
        return replace(plan, credentials=Path(config.credentials).expanduser())
    if is_anthropic and variable is None:
        variable = ANTHROPIC_KEY
    if config.key is not None or variable is None:
        return plan
    key = environment.get(variable, "").strip()
    if is_header_safe(key):
        return replace(plan, key=key)
    credentials = home / CLAUDE_CREDENTIALS
    # A login that the configuration does not name is not sent without TLS.
    if is_anthropic and config.key_env is None and not config.insecure_http and credentials.is_file():
        return replace(plan, credentials=credentials)
    fault = "does not hold a valid key" if key else "is not set"
    return replace(plan, disabled_reason=f"The backend {name} is off: {variable} {fault}.")


def plan_named(name: str, environment: Mapping[str, str]) -> Plan | None:
    """A backend that is requested by name without being configured: `codex`, or a preset."""
    if name == "codex":
        return Plan(name, BackendConfig(type="codex"), "codex")
    if name in PRESETS:
        return _plan(name, BackendConfig.model_validate({"type": "openai", "preset": name}), environment, Path())
    return None


def app_server_name(config: FileConfig) -> str:
    """The name of the app-server backend."""
    return next((name for name, backend in config.backends.items() if backend.type == "app-server"), "app-server")


def read_rules(config: FileConfig) -> list[Rule]:
    """The patterns of the configuration file."""
    patterns = config.routing.patterns.items()
    return [make_rule(pattern, backend) for backend, written in patterns for pattern in written]


def read_aliases(config: FileConfig, settings: Settings) -> dict[str, str]:
    """The user's aliases; those of the environment win over those of the file."""
    return {**config.routing.aliases, **settings.aliases}


def route(model: str, config: FileConfig, settings: Settings, plans: Sequence[Plan]) -> tuple[str | None, str | None]:
    """(the backend that a name leads to before any list of models is known, what an alias stands for).

    A disabled backend is chosen only when there is no other.
    """
    own = app_server_name(config)
    targets = [Target(MOCK), *(plan.target for plan in plans), Target(own)]
    table = Table(targets, default=own, rules=read_rules(config), aliases=read_aliases(config, settings))
    name, _ = table.unalias(model)
    backend = table.known_at_once(name, keyed=False) or table.known_at_once(name, keyed=True)
    return backend, (name if name != model else None)


def read_prices(config: FileConfig) -> Prices:
    """The operator's prices. By default cached input costs as much as other input, and reasoning as other output."""
    return Prices(
        {
            pattern: Price(
                price.input,
                price.output,
                price.input if price.cached is None else price.cached,
                price.output if price.reasoning is None else price.reasoning,
            )
            for pattern, price in config.prices.models.items()
        },
        config.prices.currency,
    )
