"""Which backend a model's name leads to. Pure, and the same every time.

The user's aliases come first (one level; exact ones before patterns), then the user's patterns, of which the longest
match wins, then models that the operator names, then `provider/model` for the providers of Codex's config.toml, then
what comes with the program.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate

from bridge.turn.models import ModelChoice, effort_in_name, split_provider

MOCK = "mock"
DEFAULT = "<default>"
"""Stands in a built-in rule for the backend that `routing.default` names."""

BUILT_IN_ALIASES: Mapping[str, str] = {
    "sonnet": "claude-sonnet-4-5-20250929",
    "opus": "claude-opus-4-5-20251101",
    "haiku": "claude-haiku-4-5-20251001",
    "gemini": "gemini-2.5-pro",
    "flash": "gemini-2.5-flash",
}

BUILT_IN_PATTERNS: Sequence[tuple[str, str]] = (
    ("gpt-", DEFAULT),
    ("chatgpt-", DEFAULT),
    ("codex-", DEFAULT),
    ("o1", DEFAULT),
    ("o3", DEFAULT),
    ("o4-mini", DEFAULT),
    ("claude-", "anthropic"),
    ("gemini-", "gemini"),
)
"""(pattern, kind of backend). `o1` is a model's whole name as well as a beginning: `o1`, `o1-pro`."""

CODEX_PREFIXES = tuple(pattern for pattern, kind in BUILT_IN_PATTERNS if kind == DEFAULT)

_GLOB = re.compile(r"[*?\[]")
_OPEN = re.compile(r"[*?]")
_BRACKETS = re.compile(r"\[[^\]]+\]")


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern and the backend (of an alias: the model) that it leads to.

    Without `*`, `?` or `[` a pattern is a prefix.
    """

    pattern: str
    target: str
    matches: re.Pattern[str] = field(repr=False, compare=False)

    @property
    def weight(self) -> int:
        """How much of a name it fixes."""
        return len(_OPEN.sub("", _BRACKETS.sub("x", self.pattern)))


def make_rule(pattern: str, target: str) -> Rule:
    """A rule from what a person wrote; case does not matter."""
    shape = pattern if is_pattern(pattern) else f"{_escape(pattern)}*"
    return Rule(pattern, target, re.compile(translate(shape.lower())))


def is_pattern(name: str) -> bool:
    """Whether a name stands for several."""
    return _GLOB.search(name) is not None


def best_rule(name: str, rules: Iterable[Rule]) -> Rule | None:
    """The rule that fixes most of the name; of equals the one that was written first."""
    found = [rule for rule in rules if rule.matches.match(name.lower())]
    return max(found, key=lambda rule: rule.weight, default=None)


def _escape(text: str) -> str:
    return text.replace("[", "[[]")


_BUILT_IN = tuple(make_rule(pattern, kind) for pattern, kind in BUILT_IN_PATTERNS)


def is_codex_name(name: str) -> bool:
    """Whether a name begins like one of Codex's models."""
    rule = best_rule(name, _BUILT_IN)
    return rule is not None and rule.target == DEFAULT


def unlisted_model(name: str) -> ModelChoice:
    """A model that Codex does not list: its provider judges whether it exists.

    Only names of Codex's models have an effort at their end. `mistral-medium` is a model.
    """
    model, effort = effort_in_name(name) if is_codex_name(name) else (name, None)
    return ModelChoice(name, model, effort)


@dataclass(frozen=True, slots=True)
class Place:
    """A backend, as far as it matters where names lead.

    `kind` is what built-in patterns lead to. `models` are those that the operator names for it, `providers` those that
    a name may ask for as `provider/model`. `off` tells why it cannot answer by itself: it then serves only requests
    that bring a key of their own (`keyed`).
    """

    name: str
    kind: str = ""
    models: tuple[str, ...] = ()
    off: str | None = None
    providers: tuple[str, ...] = ()


class Table:
    """Which backend a name leads to without anybody being asked; backends go by their names.

    Rules that lead to no place do not count. `missing` tells of kinds of backends that nobody configured, why they are
    not there. An alias with `*`, `?` or `[` in it is a pattern.
    """

    def __init__(
        self,
        places: Iterable[Place],
        *,
        default: str,
        rules: Iterable[Rule] = (),
        aliases: Mapping[str, str] | None = None,
        missing: Mapping[str, str] | None = None,
    ) -> None:
        self._places = {place.name: place for place in places}
        self._rules = [rule for rule in rules if rule.target in self._places]
        self.aliases = dict(aliases or {})
        """The user's aliases, as they were written."""
        self._aliases = {alias.lower(): target for alias, target in self.aliases.items()}
        self.alias_rules = [make_rule(alias, target) for alias, target in self.aliases.items() if is_pattern(alias)]
        self._default = default
        self.missing = missing or {}

    def unalias(self, requested: str, is_model: Callable[[str], bool] = lambda _: False) -> tuple[str, str | None]:
        """(the name that is meant, the effort that an alias with a suffix implies).

        Exact aliases come first, then models (`is_model`), so that a pattern such as `*` hides none of them.
        """
        target = self._aliases.get(requested.lower())
        if target is not None:
            return target, None
        base, effort = effort_in_name(requested)
        target = self._aliases.get(base.lower())
        if target is not None:
            return target, effort
        rule = best_rule(requested, self.alias_rules)
        if rule is not None and not is_model(requested):
            return rule.target, effort
        return BUILT_IN_ALIASES.get(requested.lower(), requested), None

    def known_at_once(self, name: str, *, keyed: bool) -> str | None:
        """The backend that a name leads to whatever the default backend may list."""
        rule = best_rule(name, (rule for rule in self._rules if self.is_usable(rule.target, keyed=keyed)))
        if rule is not None:
            return rule.target
        for place in self._usable(keyed):
            if name.lower() in {model.lower() for model in place.models}:
                return place.name
        for place in self._usable(keyed):
            if split_provider(name, place.providers) is not None:
                return place.name
        found = self.built_in(name, keyed=keyed)
        return None if found == self._default else found

    def built_in(self, name: str, *, keyed: bool) -> str | None:
        """The backend that a name leads to by what comes with the program."""
        rule = best_rule(name, _BUILT_IN)
        return None if rule is None else self._of_kind(rule.target, keyed)

    def is_usable(self, backend: str, *, keyed: bool) -> bool:
        """Whether a backend can answer such a request."""
        return keyed or self._places[backend].off is None

    def reason(self, name: str) -> str | None:
        """Why a name that would lead to a backend does not."""
        found = self.known_at_once(name, keyed=True)
        if found is not None:
            return self._places[found].off
        if is_codex_name(name):
            return self._places[self._default].off
        rule = best_rule(name, _BUILT_IN)
        return self.missing.get(rule.target) if rule is not None else None

    def patterns(self) -> list[tuple[str, str]]:
        """(pattern, backend), the user's first."""
        found = [(rule.pattern, self._of_kind(rule.target, keyed=False)) for rule in _BUILT_IN]
        built_in = [(pattern, backend) for pattern, backend in found if backend is not None]
        providers = [(f"{each}/", place.name) for place in self._usable(keyed=False) for each in place.providers]
        return [(rule.pattern, rule.target) for rule in self._rules] + providers + built_in

    def _of_kind(self, kind: str, keyed: bool) -> str | None:
        if kind == DEFAULT:
            usable = self._default != MOCK and self.is_usable(self._default, keyed=keyed)
            return self._default if usable else None
        return next((place.name for place in self._usable(keyed) if place.kind == kind), None)

    def _usable(self, keyed: bool) -> Iterator[Place]:
        return (place for place in self._places.values() if self.is_usable(place.name, keyed=keyed))
