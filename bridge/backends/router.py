"""Which backend serves a model, and under which name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import trio

from bridge.appserver.standin.script import MODES
from bridge.backends.base import Backend
from bridge.backends.routing import BUILT_IN_ALIASES, BUILT_IN_PATTERNS, DEFAULT, Rule, best_rule, make_rule
from bridge.errors import BridgeError, ModelNotFound, NotReady
from bridge.turn.models import ModelChoice, effort_in_name

MOCK_MODELS = tuple(f"mock-{mode}" for mode in MODES)
MOCK = "mock"
APP_SERVER = "app-server"
PATIENCE = 2.0
"""Seconds for which a request waits for lists of models."""

_BUILT_IN = tuple(make_rule(pattern, kind) for pattern, kind in BUILT_IN_PATTERNS)


@dataclass(frozen=True, slots=True)
class Served:
    """A backend, and what the router needs to know of it.

    `kind` is what built-in patterns lead to. `models` are those that the operator names for it. `off` tells why it
    cannot answer by itself: it then serves only requests that bring a key of their own.
    """

    backend: Backend
    kind: str = ""
    models: tuple[str, ...] = ()
    off: str | None = None


class Router:
    """Finds the backend of each request.

    In this order: the user's aliases (one level), the user's patterns, models that the operator or CODEX_HOME name,
    built-in names and patterns of other providers, what the default backend knows, what the others have listed.
    `missing` tells of kinds of backends that nobody configured, why they are not there.
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
        self._served = {each.backend.name: each for each in (Served(mock), *served)}
        self._rules = tuple(rules)
        self._aliases = {alias.lower(): target for alias, target in (aliases or {}).items()}
        self._spelled = tuple(aliases or ())
        self._missing = missing or {}
        self.default = self._served[default].backend if default is not None else mock

    def backend(self, name: str) -> Backend:
        """The backend of this name."""
        return self._served[name].backend

    def resolve(self, requested: str, *, keyed: bool = False) -> ModelChoice:
        """The model behind a name, and its backend. Raises ModelNotFound naming some that exist.

        `keyed`: the request brings a key for its provider.
        """
        name, effort = self._unalias(requested)
        if name.lower() in MOCK_MODELS:
            return ModelChoice(requested, name.lower(), backend=MOCK)
        for backend in self._candidates(name, keyed):
            choice = backend.resolve(name)
            if choice is not None:
                return ModelChoice(requested, choice.effective, effort or choice.effort, backend.name)
        why = self._reason(name)
        if why is None and name != requested and self.default.name != MOCK and self._is_usable(self.default, keyed):
            # Whoever made the alias knows the model, even if nobody lists it.
            return ModelChoice(requested, name, effort, self.default.name)
        raise ModelNotFound(requested, self.models(), why, [pattern for pattern, _ in self._patterns()])

    def decide(self, requested: str, *, keyed: bool = False) -> tuple[Backend | None, str]:
        """(the backend that a name leads to, whatever any of them may list; the name without its alias)."""
        name, _ = self._unalias(requested)
        return self._known_at_once(name, keyed), name

    async def wait_for(self, requested: str) -> None:
        """Until it can be told what a name means. Raises NotReady when the default backend cannot tell its models.

        A name that is known otherwise waits for nobody; lists that were never fetched are waited for a moment.
        """
        name, _ = self._unalias(requested)
        if name.lower() in MOCK_MODELS or self._known_at_once(name) is not None or self._listed(name):
            return
        refusals: list[NotReady] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._wait_for_lists, name, nursery.cancel_scope)
            if self._served[self.default.name].off is None:
                try:
                    await self.default.wait_until_known()
                except NotReady as refusal:
                    refusals.append(refusal)
            if self.default.knows(name) or self._listed(name):
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
        """Until the models of all backends are known, but no longer than that."""
        with trio.move_on_after(patience):
            async with trio.open_nursery() as nursery:
                for backend in (self.default, *self._others()):
                    if self._is_usable(backend, keyed=False):
                        nursery.start_soon(_quietly, backend)

    def models(self) -> list[str]:
        """All names that a request may use: what each backend offers, mock models, aliases."""
        names = [name for each in self._on() for name in (*each.backend.names(), *each.models)]
        if not names and not self._on():
            return list(MOCK_MODELS)
        others = [alias for alias, target in BUILT_IN_ALIASES.items() if self._built_in(target, keyed=False)]
        aliases = [alias for alias in self._spelled if names and self._reason(self._unalias(alias)[0]) is None]
        return list(dict.fromkeys([*names, *MOCK_MODELS, *aliases, *others]))

    def _backend_of(self, name: str) -> str | None:
        try:
            return self.resolve(name).backend
        except ModelNotFound:
            return None

    def _patterns(self) -> list[tuple[str, str]]:
        """(pattern, backend), the user's first."""
        rules = [(rule.pattern, rule.backend) for rule in self._rules]
        return rules + [
            (rule.pattern, found.name) for rule in _BUILT_IN if (found := self._of_kind(rule, keyed=False)) is not None
        ]

    def describe(self) -> dict[str, Any]:
        """Everything that can be routed, for people: models and patterns with their backends, and what is not there."""
        off = {name: each.off for name, each in self._served.items() if each.off is not None}
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
            "patterns": [{"pattern": pattern, "backend": backend} for pattern, backend in self._patterns()],
            "off": {**{kind: why for kind, why in self._missing.items() if why not in off.values()}, **off},
        }

    async def read_rate_limits(self) -> Mapping[str, Any] | None:
        """What the default backend knows of its account's quota now."""
        return await self.default.read_rate_limits()

    # Finding

    def _unalias(self, requested: str) -> tuple[str, str | None]:
        """(the name that is meant, the effort that an alias with a suffix implies)."""
        target = self._aliases.get(requested.lower())
        if target is not None:
            return target, None
        base, effort = effort_in_name(requested)
        target = self._aliases.get(base.lower())
        if target is not None:
            return target, effort
        built_in = BUILT_IN_ALIASES.get(requested.lower())
        return (requested if built_in is None else built_in), None

    def _candidates(self, name: str, keyed: bool) -> Iterator[Backend]:
        found = self._known_at_once(name, keyed)
        if found is not None:
            yield found
            return
        rule = best_rule(name, _BUILT_IN)
        by_rule = rule is not None and self._of_kind(rule, keyed=keyed) is self.default
        if self._is_usable(self.default, keyed) and (by_rule or self.default.knows(name)):
            yield self.default
        yield from (backend for backend in self._others() if backend.knows(name))

    def _known_at_once(self, name: str, keyed: bool = True) -> Backend | None:
        """The backend that a name leads to whatever the default backend may list."""
        usable = {backend for backend, each in self._served.items() if self._is_usable(each.backend, keyed)}
        rule = best_rule(name, (rule for rule in self._rules if rule.backend in usable))
        if rule is not None:
            return self._served[rule.backend].backend
        for each in self._served.values():
            if each.backend.name in usable and name.lower() in {model.lower() for model in each.models}:
                return each.backend
        found = self._built_in(name, keyed=keyed)
        return None if found is self.default else found

    def _built_in(self, name: str, *, keyed: bool) -> Backend | None:
        rule = best_rule(name, _BUILT_IN)
        return None if rule is None else self._of_kind(rule, keyed=keyed)

    def _of_kind(self, rule: Rule, *, keyed: bool) -> Backend | None:
        if rule.backend == DEFAULT:
            usable = self.default.name != MOCK and self._is_usable(self.default, keyed)
            return self.default if usable else None
        for each in self._served.values():
            if each.kind == rule.backend and (keyed or each.off is None):
                return each.backend
        return None

    def _is_usable(self, backend: Backend, keyed: bool) -> bool:
        return keyed or self._served[backend.name].off is None

    def _others(self) -> list[Backend]:
        """Those beside the default whose lists count. Another Codex is started only when it is meant."""
        return [each.backend for each in self._on() if each.backend is not self.default and each.kind != APP_SERVER]

    def _on(self) -> list[Served]:
        return [each for name, each in self._served.items() if each.off is None and name != MOCK]

    def _reason(self, name: str) -> str | None:
        """Why a name that would lead to a backend does not."""
        found = self._known_at_once(name, keyed=True)
        if found is not None:
            return self._served[found.name].off
        rule = best_rule(name, _BUILT_IN)
        if rule is not None and rule.backend == DEFAULT:
            return self._served[self.default.name].off
        return self._missing.get(rule.backend) if rule is not None else None


async def _quietly(backend: Backend) -> None:
    with suppress(BridgeError):
        await backend.wait_until_known()
