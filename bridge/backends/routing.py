"""Which backend a model's name leads to. Pure, and the same every time.

The user's aliases come first (one level), then the user's patterns, of which the longest match wins, then what comes
with the program.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate

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

_GLOB = re.compile(r"[*?\[]")
_OPEN = re.compile(r"[*?]")
_BRACKETS = re.compile(r"\[[^\]]+\]")


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern and the backend that it leads to. Without `*`, `?` or `[` a pattern is a prefix."""

    pattern: str
    backend: str
    matches: re.Pattern[str] = field(repr=False, compare=False)

    @property
    def weight(self) -> int:
        """How much of a name it fixes."""
        return len(_OPEN.sub("", _BRACKETS.sub("x", self.pattern)))


def make_rule(pattern: str, backend: str) -> Rule:
    """A rule from what a person wrote; case does not matter."""
    shape = pattern if _GLOB.search(pattern) else f"{_escape(pattern)}*"
    return Rule(pattern, backend, re.compile(translate(shape.lower())))


def best_rule(name: str, rules: Iterable[Rule]) -> Rule | None:
    """The rule that fixes most of the name; of equals the one that was written first."""
    found = [rule for rule in rules if rule.matches.match(name.lower())]
    return max(found, key=lambda rule: rule.weight, default=None)


def _escape(text: str) -> str:
    return text.replace("[", "[[]")
