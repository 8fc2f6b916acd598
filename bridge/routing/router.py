"""Which backend serves a model under which name, and how tools are offered to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import trio

from bridge.appserver.standin import MODES
from bridge.core.backend import Backend
from bridge.core.models import (
    BUILT_IN_ALIASES,
    MOCK,
    ModelChoice,
    Rule,
    Table,
    Target,
    best_rule,
    is_pattern,
    make_rule,
)
from bridge.errors import BridgeError, InvalidRequest, ModelNotFound, NotReady

MOCK_MODELS = tuple(f"mock-{mode}" for mode in MODES)
APP_SERVER = "app-server"
PATIENCE = 2.0
"""How many seconds a request waits for lists of models."""
MAX_CACHED, MAX_CACHED_NAME = 1000, 200
"""Bounds of the cache: clients choose the names."""

TOOL_MODE_HEADER = b"x-bridge-tool-mode"
ToolMode = Literal["text", "native"]
NO_MODES: Mapping[str, ToolMode] = {}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Served:
    """A backend, and what routing knows of it."""

    backend: Backend
    target: Target


class Router:
    """Finds the backend of each request.

    In this order: the user's aliases (one level), the user's patterns, models that the operator or CODEX_HOME name,
    `provider/model` for the providers of CODEX_HOME, built-in names and patterns, models of the default backend, models
    that others list, and the default backend again if it accepts any model. The keywords are those of Table.

    All steps before the lists of models need no request, so that a dead Codex delays no other backend. A list decides
    which backend is meant, never whether a model exists: the provider judges that.
    """

    def __init__(
        self,
        mock: Backend,
        served: Sequence[Served] = (),
        *,
        default: str | None = None,
        rules: Sequence[Rule] = (),
        aliases: Mapping[str, str] | None = None,
        missing: Mapping[str, str] | None = None,
    ) -> None:
        self._served = {each.backend.name: each for each in (Served(mock, Target(mock.name)), *served)}
        self.default = self._served[default].backend if default is not None else mock
        targets = [each.target for each in self._served.values()]
        self._table = Table(targets, default=self.default.name, rules=rules, aliases=aliases, missing=missing)
        self._lists: list[tuple[object, ...] | None] = []
        self._ids: list[list[int] | None] = []
        self._cache: dict[tuple[object, ...], Any] = {}

    def backend(self, name: str) -> Backend:
        return self._served[name].backend

    def resolve(self, requested: str, *, keyed: bool = False) -> ModelChoice:
        """The model behind a name, and its backend. Raises ModelNotFound naming some that exist.

        `keyed`: the request brings a key for its provider.
        """
        return self._cached(("resolve", requested, keyed), lambda: self._resolve(requested, keyed))

    def _cached(self, question: tuple[object, ...], compute: Callable[[], T]) -> T:
        """The answer to a question, computed again only when a backend's lists have changed.

        Each request asks several times, and GET /v1/models for every model.
        """
        lists = [each.backend.lists() for each in self._served.values()]
        # The lists are kept, so that no other object can have the same id.
        ids = [None if each is None else [*map(id, each)] for each in lists]
        if ids != self._ids:
            self._lists, self._ids = lists, ids
            self._cache.clear()
        if question in self._cache:
            found: T = self._cache[question]
            return found
        found = compute()
        if len(self._cache) < MAX_CACHED and len(str(question[1])) <= MAX_CACHED_NAME:
            self._cache[question] = found
        return found

    def _resolve(self, requested: str, keyed: bool) -> ModelChoice:
        name, effort = self._table.unalias(requested, self._is_model)
        if name.lower() in MOCK_MODELS:
            return ModelChoice(requested, name.lower(), backend=MOCK)
        backend = self._find(name, keyed, aliased=name != requested)
        if backend is None:
            patterns = [pattern for pattern, _ in self._table.patterns()]
            raise ModelNotFound(requested, self.models(), self._table.reason(name), patterns)
        choice = backend.resolve(name)
        return ModelChoice(requested, choice.effective, effort or choice.effort, backend.name, choice.provider)

    def decide(self, requested: str, *, keyed: bool = False) -> tuple[Backend | None, str]:
        """(the backend that a name leads to before any list is known, the name that an alias stands for)."""
        name, _ = self._table.unalias(requested, self._is_model)
        found = self._table.known_at_once(name, keyed=keyed)
        return (None if found is None else self._served[found].backend), name

    async def wait_for(self, requested: str) -> None:
        """Wait until a name can be resolved. Raises NotReady when the default backend cannot list its models.

        Returns at once for a name that needs no list; waits a moment for lists that were never fetched.
        """
        if ("resolve", requested, False) in self._cache and self._all_known():
            return
        found, name = self.decide(requested, keyed=True)
        if name.lower() in MOCK_MODELS or found is not None or self._listed(name):
            return
        refusals: list[NotReady] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._wait_for_lists, name, nursery.cancel_scope)
            if self._is_usable(self.default, keyed=False):
                try:
                    await self.default.wait_until_known()
                except NotReady as refusal:
                    refusals.append(refusal)
            if self._is_the_defaults(name, keyed=True) or self._listed(name):
                nursery.cancel_scope.cancel()
        if refusals and not self._listed(name):
            raise refusals[0]

    async def _wait_for_lists(self, name: str, scope: trio.CancelScope) -> None:
        with trio.move_on_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for backend in self._others():
                    nursery.start_soon(_quietly, backend)
        if self._listed(name):
            scope.cancel()

    def _listed(self, name: str) -> bool:
        """Whether a backend beside the default has listed a name."""
        return any(backend.knows(name) for backend in self._others())

    async def wait_until_known(self, patience: float) -> None:
        """Wait until the models of all backends are known, at most `patience` seconds."""
        if self._all_known():
            return
        with trio.move_on_after(patience):
            async with trio.open_nursery() as nursery:
                for backend in (self.default, *self._others()):
                    if self._is_usable(backend, keyed=False):
                        nursery.start_soon(_quietly, backend)

    def _all_known(self) -> bool:
        """Whether every usable backend has listed its models."""
        backends = (self.default, *self._others())
        return all(each.lists() is not None for each in backends if self._is_usable(each, keyed=False))

    async def default_model(self) -> str:
        """The model for a request that names none. Raises NotReady when the default backend cannot list its models."""
        if self.default.name == MOCK:
            return MOCK_MODELS[0]
        await self.default.wait_until_known()
        found = self.default.preferred()
        if found is None:
            raise NotReady("The default backend has not listed its models yet. Name a model.", retry_after=2)
        return found

    def models(self, *, aliases: bool = True) -> list[str]:
        """The names that a request may use: models of each backend, mock models, aliases.

        Without `aliases` only models, each under its own name.
        """
        return self._cached(("models", aliases), lambda: self._models(aliases))

    def _models(self, aliases: bool) -> list[str]:
        names = [name for each in self._on() for name in (*each.backend.names(), *each.target.models)]
        if not names and not self._on():
            return list(MOCK_MODELS)
        if not aliases:
            own = {model for each in self._on() for model in (*each.backend.models(), *each.target.models)}
            return list(dict.fromkeys([*(name for name in names if name in own), *MOCK_MODELS]))
        table = self._table
        others = [alias for alias, target in BUILT_IN_ALIASES.items() if table.built_in(target, keyed=False)]
        own_aliases = [
            alias
            for alias, target in table.aliases.items()
            if names and not is_pattern(alias) and table.reason(target) is None
        ]
        return list(dict.fromkeys([*names, *MOCK_MODELS, *own_aliases, *others]))

    def details(self, name: str) -> Mapping[str, Any]:
        """What is known of the model behind a name, for GET /v1/models. Raises ModelNotFound."""
        return self._cached(("details", name), lambda: self._details(name))

    def _details(self, name: str) -> Mapping[str, Any]:
        choice = self.resolve(name)
        found = self.backend(choice.backend).details(choice.effective)
        if choice.effort is not None and found:
            return {**found, "default_reasoning_effort": choice.effort}
        return found

    @property
    def has_aliases(self) -> bool:
        return bool(self._table.aliases)

    def stray_aliases(self) -> list[tuple[str, str, str]]:
        """(alias, its model, what is wrong) for each of the user's aliases whose model no backend offers."""
        aliases = self._table.aliases.items()
        return [(alias, target, why) for alias, target in aliases if (why := self.why_stray(target)) is not None]

    def why_stray(self, name: str) -> str | None:
        """What is wrong with a model that the operator names; None if a backend offers it, or may."""
        why = self._table.reason(name)
        default = self.default
        can_tell = bool(default.models()) and default.status()[0] and not default.takes.any_model
        if why is not None or not can_tell or self._table.known_at_once(name, keyed=False) is not None:
            return why
        return None if self._is_model(name) else "No backend offers this model."

    def _is_model(self, name: str) -> bool:
        """Whether some backend offers a model of this name, with or without an effort."""
        if name.lower() in MOCK_MODELS:
            return True
        for each in self._on():
            choice = each.backend.resolve(name)
            offered = {model.lower() for model in (*each.backend.models(), *each.target.models)}
            if choice.provider is not None or choice.effective.lower() in offered:
                return True
        return False

    def _backend_of(self, name: str) -> str | None:
        try:
            return self.resolve(name).backend
        except ModelNotFound:
            return None

    def describe(self) -> dict[str, Any]:
        """Everything that can be routed: models and patterns with their backends, and which backends are off."""
        off = {
            name: each.target.disabled_reason
            for name, each in self._served.items()
            if each.target.disabled_reason is not None
        }
        for each in self._on():
            ready, reason = each.backend.status()
            if not ready:
                off[each.backend.name] = reason
        return {
            "models": [
                {"model": name, "backend": backend}
                for name in self.models()
                if (backend := self._backend_of(name)) is not None and backend not in off
            ],
            "patterns": [
                *(
                    {"pattern": rule.pattern, "backend": self._backend_of(rule.target), "model": rule.target}
                    for rule in self._table.alias_rules
                ),
                *({"pattern": pattern, "backend": backend} for pattern, backend in self._table.patterns()),
                *([{"pattern": "*", "backend": self.default.name}] if self.default.takes.any_model else []),
            ],
            "off": {**{kind: why for kind, why in self._table.missing.items() if why not in off.values()}, **off},
        }

    async def read_rate_limits(self) -> Mapping[str, Any] | None:
        """What the default backend knows of its account's quota now."""
        return await self.default.read_rate_limits()

    def _find(self, name: str, keyed: bool, *, aliased: bool) -> Backend | None:
        found = self._table.known_at_once(name, keyed=keyed)
        if found is not None:
            return self._served[found].backend
        if self._is_the_defaults(name, keyed):
            return self.default
        for backend in self._others():
            if backend.knows(name):
                return backend
        if self.default.name == MOCK or not self._is_usable(self.default, keyed):
            return None
        # A configured backend that lacks its key is reported, not replaced by another provider.
        claimed = self._table.known_at_once(name, keyed=True) is not None
        if self.default.takes.any_model and not claimed:
            return self.default
        # The user who defined the alias knows the model, even if no backend lists it.
        return self.default if aliased and self._table.reason(name) is None else None

    def _is_the_defaults(self, name: str, keyed: bool) -> bool:
        """Whether a name leads to the default backend by its beginning, or because that knows it."""
        by_rule = self._table.built_in(name, keyed=keyed) == self.default.name
        return self._is_usable(self.default, keyed) and (by_rule or self.default.knows(name))

    def _is_usable(self, backend: Backend, keyed: bool) -> bool:
        return self._table.is_usable(backend.name, keyed=keyed)

    def _others(self) -> list[Backend]:
        """Those beside the default whose lists count. Another Codex is started only when it is meant."""
        return [
            each.backend for each in self._on() if each.backend is not self.default and each.target.kind != APP_SERVER
        ]

    def _on(self) -> list[Served]:
        return [each for name, each in self._served.items() if each.target.disabled_reason is None and name != MOCK]


async def _quietly(backend: Backend) -> None:
    with suppress(BridgeError):
        await backend.wait_until_known()


# How tools are offered


class ToolModes:
    """The operator's choices by model and by key, each a pattern as in routing. A key's choice wins over a model's."""

    def __init__(self, models: Mapping[str, ToolMode] = NO_MODES, keys: Mapping[str, ToolMode] = NO_MODES) -> None:
        self._models = [make_rule(pattern, mode) for pattern, mode in models.items()]
        self._keys = [make_rule(pattern, mode) for pattern, mode in keys.items()]

    def offers_natively(self, key: str, model: str, header: bytes | None = None) -> bool | None:
        """Whether this request's tools are native; None where no choice matches, so that the general setting applies.

        `header` is the value of X-Bridge-Tool-Mode, which wins. Raises InvalidRequest for an unknown value.
        """
        if header is not None:
            if header not in (b"text", b"native"):
                raise InvalidRequest("Invalid X-Bridge-Tool-Mode. Use 'text' or 'native'.", code="invalid_tool_mode")
            return header == b"native"
        found = best_rule(key, self._keys) or best_rule(model, self._models)
        return None if found is None else found.target == "native"
