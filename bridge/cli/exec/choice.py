"""Who answers a run: chosen by a flag, or by the model's name. Nothing is started yet."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bridge.cli.exec.options import Options
from bridge.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from bridge.backends.plan import Plan
    from bridge.config import Settings

Kind = Literal["mock", "url", "app-server", "provider"]


@dataclass(frozen=True, slots=True)
class Choice:
    """The backend of a run; `model` is what an alias stands for, None where none was used.

    `by_rule`: a flag, a pattern or an alias has led here, so that the model need not be listed.
    """

    kind: Kind
    settings: Settings | None = None
    plan: Plan | None = None
    model: str | None = None
    by_rule: bool = False

    @property
    def speaks_responses(self) -> bool:
        """Whether items can be passed on exactly as they are."""
        if self.plan is not None:
            return self.plan.config.type in ("codex", "responses", "mock")
        return self.kind in ("mock", "url")


def choose(options: Options) -> Choice:
    """Who answers. Raises UsageError or ConfigError."""
    if options.is_mock:
        return Choice("mock")
    from bridge.config_file import load_configuration

    settings, config = load_configuration(
        config=options.config,
        codex_bin=options.codex_bin,
        codex_home=options.codex_home,
        native_tools=options.native_tools or None,
        web_search="live" if options.web_search else None,
    )
    if options.url is not None:
        return Choice("url", settings)
    from bridge.appserver.codex_home import read_codex_home
    from bridge.backends.plan import app_server_name, plan_backends, plan_named, route
    from bridge.backends.routing import MOCK
    from bridge.backends.setup import configured_models

    plans = {plan.name: plan for plan in plan_backends(config, os.environ, Path.home())}
    keyed = options.provider_key is not None
    name, model = options.backend, None
    if name is None and options.model is not None and options.model not in configured_models(settings):
        others = list(plans.values())
        if not keyed and read_codex_home(settings.codex_home_path).any_model:
            others = [plan for plan in others if plan.off is None or not plan.implied]
        name, model = route(options.model, config, settings, others)
    by_rule = name is not None or model is not None
    name = name or config.routing.default or "app-server"
    if name == MOCK:
        return Choice("mock", settings)
    if name in ("app-server", app_server_name(config)):
        if keyed:
            raise UsageError("--provider-key needs another backend or --url: Codex itself uses its own login.")
        return Choice("app-server", settings, model=model, by_rule=by_rule)
    plan = plans.get(name) or plan_named(name, os.environ)
    if plan is None:
        known = ["app-server", "codex", "mock", *plans]
        raise UsageError(f"--backend {name[:40]}: choose one of {', '.join(dict.fromkeys(known))}.")
    if plan.off is not None and not keyed:
        raise ConfigError(f"{plan.off} Set it, or give --provider-key.")
    return Choice("provider", settings, plan, model)
