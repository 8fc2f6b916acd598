"""Model names: aliases, and the effort that a suffix implies (seed 003, "Common normalization rules").

Names compare without regard to case. The client gets back the name it wrote; the backend gets the effective one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

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
"""The model where neither the client nor the backend names one."""

DEFAULT_MODEL = "<default>"
"""Stands in an alias table for whatever model the backend uses when none is named."""

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
    """The outcome: what was written, what is sent, the effort that the name implies, and who serves it."""

    requested: str
    effective: str
    effort: str | None = None
    backend: str = ""
    provider: str | None = None
    """The provider of Codex's config.toml that the name asks for; None: the one that Codex uses anyway."""


def split_provider(name: str, providers: Iterable[str]) -> tuple[str, str] | None:
    """(provider, model) of `provider/model`, where it is one of these providers; None for any other name."""
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
    """Find the model behind a name, or None when nothing knows it.

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
