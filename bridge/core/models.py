"""Model names: aliases, the effort that a suffix implies (seed 003, "Common normalization rules"), and routing rules.

Names compare without regard to case. The client gets back the name it sent; the backend gets the effective one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate

EFFORT_SUFFIXES = {
    "-low": "low",
    "-medium": "medium",
    "-high": "high",
    "-xhigh": "xhigh",
    "-l": "low",
    "-m": "medium",
    "-h": "high",
    "-xh": "xhigh",
}

FALLBACK_MODEL = "gpt-5.2-codex"
"""The model if neither the client nor the backend names one."""

DEFAULT_MODEL = "<default>"
"""In an alias table: the default model of the backend."""

DEFAULT_ALIASES: Mapping[str, str] = {
    "codex-5": DEFAULT_MODEL,
    "gpt-5.2": "gpt-5.2",
    "gpt-5.2-codex": "gpt-5.2-codex",
    "gpt-5.2-codev": "gpt-5.2",
    # With an effort suffix the codex family is the plain model; only the bare name is a model of its own.
    **{f"gpt-5.2-{family}{suffix}": "gpt-5.2" for family in ("codex", "codev") for suffix in EFFORT_SUFFIXES},
}


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A resolved name: the requested and the effective model, the effort in the name, and the backend."""

    requested: str
    effective: str
    effort: str | None = None
    backend: str = ""
    provider: str | None = None
    """The provider in Codex's config.toml that the name selects; None for Codex's default."""


def split_provider(name: str, providers: Iterable[str]) -> tuple[str, str] | None:
    """(provider, model) of `provider/model` with one of these providers; None for any other name."""
    prefix, _, model = name.partition("/")
    found = next((provider for provider in providers if provider.lower() == prefix.lower()), None)
    return (found, model) if found is not None and model else None


def effort_in_name(name: str) -> tuple[str, str | None]:
    """Split an effort suffix off, longest first: `x-xhigh` → (`x`, `xhigh`); no suffix → (name, None)."""
    lowered = name.lower()
    for suffix in sorted(EFFORT_SUFFIXES, key=len, reverse=True):
        if lowered.endswith(suffix) and len(name) > len(suffix):
            return name[: -len(suffix)], EFFORT_SUFFIXES[suffix]
    return name, None


def resolve_model(
    requested: str,
    *,
    known: Collection[str],
    default: str,
    aliases: Mapping[str, str] = DEFAULT_ALIASES,
    efforts: Mapping[str, Collection[str]] | None = None,
) -> ModelChoice | None:
    """Find the model behind a name; None if it is unknown.

    A known model wins over everything, then an alias of the whole name, then either of the two for the name
    without its effort suffix. `efforts` are those that each model lists: they are suffixes of that model too. The
    usual suffixes work on every model, but `-max` or `-none` must not, because names of models end so.
    """
    spelled = {model.lower(): model for model in known}
    lowered = {alias.lower(): target for alias, target in aliases.items()}

    def lookup(name: str) -> str | None:
        key = name.lower()
        if key in spelled:
            return spelled[key]
        target = lowered.get(key)
        return default if target == DEFAULT_MODEL else target

    base, implied = effort_in_name(requested)
    whole = lookup(requested)
    if whole is not None:
        # A listed model whose own name ends like a suffix implies nothing.
        return ModelChoice(requested, whole, None if requested.lower() in spelled else implied)
    found = lookup(base) if implied else None
    if found is None:
        base, _, implied = requested.rpartition("-")
        found = lookup(base)
        if found is None or implied.lower() not in (efforts or {}).get(found, ()):
            return None
        implied = implied.lower()
    return ModelChoice(requested, found, implied)


MOCK = "mock"
DEFAULT = "<default>"
"""In a built-in rule: the backend of `routing.default`."""

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
        """How specific it is: the number of literal characters."""
        return len(_OPEN.sub("", _BRACKETS.sub("x", self.pattern)))


def make_rule(pattern: str, target: str) -> Rule:
    """A rule for a pattern in a setting. Case does not matter."""
    shape = pattern if is_pattern(pattern) else f"{_escape(pattern)}*"
    return Rule(pattern, target, re.compile(translate(shape.lower())))


def is_pattern(name: str) -> bool:
    """Whether a name is a pattern for several."""
    return _GLOB.search(name) is not None


def best_rule(name: str, rules: Iterable[Rule]) -> Rule | None:
    """The most specific rule that matches; the first of equal ones."""
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
class Target:
    """What routing knows of a backend.

    Built-in patterns lead to a `kind`. The operator lists `models`; a name may select one of `providers` as
    `provider/model`. A backend with a `disabled_reason` serves only requests that bring their own key (`keyed`).
    """

    name: str
    kind: str = ""
    models: tuple[str, ...] = ()
    disabled_reason: str | None = None
    providers: tuple[str, ...] = ()


class Table:
    """The routing of names that needs no request to a backend. Backends are given by their names.

    Rules with an unknown backend are ignored. `missing` has the reason for each kind of backend that is not configured.
    An alias with `*`, `?` or `[` is a pattern.
    """

    def __init__(
        self,
        targets: Iterable[Target],
        *,
        default: str,
        rules: Iterable[Rule] = (),
        aliases: Mapping[str, str] | None = None,
        missing: Mapping[str, str] | None = None,
    ) -> None:
        self._targets = {target.name: target for target in targets}
        self._rules = [rule for rule in rules if rule.target in self._targets]
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
        for target in self._usable(keyed):
            if name.lower() in {model.lower() for model in target.models}:
                return target.name
        for target in self._usable(keyed):
            if split_provider(name, target.providers) is not None:
                return target.name
        found = self.built_in(name, keyed=keyed)
        return None if found == self._default else found

    def built_in(self, name: str, *, keyed: bool) -> str | None:
        """The backend that a name leads to by what comes with the program."""
        rule = best_rule(name, _BUILT_IN)
        return None if rule is None else self._of_kind(rule.target, keyed)

    def is_usable(self, backend: str, *, keyed: bool) -> bool:
        """Whether a backend can answer such a request."""
        return keyed or self._targets[backend].disabled_reason is None

    def reason(self, name: str) -> str | None:
        """Why a name that would lead to a backend does not."""
        found = self.known_at_once(name, keyed=True)
        if found is not None:
            return self._targets[found].disabled_reason
        if is_codex_name(name):
            return self._targets[self._default].disabled_reason
        rule = best_rule(name, _BUILT_IN)
        return self.missing.get(rule.target) if rule is not None else None

    def patterns(self) -> list[tuple[str, str]]:
        """(pattern, backend), the user's first."""
        found = [(rule.pattern, self._of_kind(rule.target, keyed=False)) for rule in _BUILT_IN]
        built_in = [(pattern, backend) for pattern, backend in found if backend is not None]
        providers = [(f"{each}/", target.name) for target in self._usable(keyed=False) for each in target.providers]
        return [(rule.pattern, rule.target) for rule in self._rules] + providers + built_in

    def _of_kind(self, kind: str, keyed: bool) -> str | None:
        if kind == DEFAULT:
            usable = self._default != MOCK and self.is_usable(self._default, keyed=keyed)
            return self._default if usable else None
        return next((target.name for target in self._usable(keyed) if target.kind == kind), None)

    def _usable(self, keyed: bool) -> Iterator[Target]:
        return (target for target in self._targets.values() if self.is_usable(target.name, keyed=keyed))
