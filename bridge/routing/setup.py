"""What the settings and the configuration file ask for: Codex, the backends over HTTP, the rules of routing."""

from __future__ import annotations

import logging
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bridge.appserver.backend import AppServerBackend
from bridge.appserver.codex_home import CodexHome, read_codex_home
from bridge.appserver.launch import CodexLauncher, Launcher
from bridge.appserver.supervisor import Pool, Supervisor
from bridge.appserver.turn import ChildSettings, Limits
from bridge.budgets import Budget, parse_budget
from bridge.core.models import MOCK, Rule, Table, Target, make_rule
from bridge.core.observer import Tap
from bridge.core.prices import Price, Prices
from bridge.errors import ConfigError
from bridge.ids import new_id
from bridge.protocols.chat.presets import PRESETS, Preset
from bridge.settings import Settings, state_dir
from bridge.settings.file import BackendConfig, FileConfig
from bridge.urls import is_header_safe

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


# Backends over HTTP

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


def read_budgets(config: FileConfig) -> list[Budget]:
    """The budgets of all keys together. Raises ConfigError for money in another currency than the prices."""
    budgets = [parse_budget(text) for text in config.budgets.all]
    currency = config.prices.currency
    for budget in budgets:
        if budget.is_money and (budget.unit != currency or not config.prices.models):
            raise ConfigError(
                f"[budgets] all: {budget} needs prices in {budget.unit}. Set [prices] currency and [prices.models], or "
                "a budget in tokens."
            )
    return budgets


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
