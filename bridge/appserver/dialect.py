"""What a child is: its version, the methods it knows, and the dialect to speak with it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from bridge.appserver.native import FIRST_VERSION

DialectName = Literal["current", "legacy"]

CLIENT_NAME = "codex-bridge"
"""Our name in the handshake; the child repeats it in its user agent, so it holds no blank and no slash."""

PROBE_METHOD = "bridge/probe"
"""A method that no server has: the refusal of a real Codex lists all those that it has."""

_FIRST_WORD = re.compile(r"^([^ /]*)/(\d+\.\d+\.\d+\S*)")
_QUOTED = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class ChildInfo:
    """The outcome of the handshake."""

    version: str | None
    is_codex: bool
    """A real Codex release, which treats `sendUserTurn` followed by `sendUserMessage` as two prompts."""
    dialect: DialectName
    methods: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def can_inject(self) -> bool:
        """Whether the history can be given item by item (stateless mode)."""
        return "thread/inject_items" in self.methods

    @property
    def needs_input(self) -> bool:
        """Whether it refuses a turn with empty input, although the history was given item by item."""
        return self.is_codex and self.version is not None and (0, 121) <= _numbers(self.version) <= (0, 132)

    @property
    def recommends_native_tools(self) -> bool:
        """Whether native tools come without any of Codex's own: before 0.155 two of these cannot be switched off."""
        return self.has_native_tools and _numbers(self.version or "") >= (0, 155)

    @property
    def has_native_tools(self) -> bool:
        """Whether it takes functions, and tells when a model has made all its calls."""
        if self.dialect != "current" or not self.is_codex or self.version is None:
            return False
        return _numbers(self.version) >= FIRST_VERSION


def parse_user_agent(user_agent: object) -> tuple[str | None, bool]:
    """(version, is a real Codex release) out of `initialize`'s `userAgent`."""
    found = _FIRST_WORD.match(user_agent) if isinstance(user_agent, str) else None
    if found is None:
        return None, False
    name, version = found.groups()
    # Codex up to 0.79 names itself, later ones repeat our name. A local build says 0.0.0.
    return version, name in (CLIENT_NAME, "codex_cli_rs") and version != "0.0.0"


def parse_methods(refusal: str) -> frozenset[str]:
    """The methods that the refusal of the probe lists; empty when it lists none."""
    return frozenset(_QUOTED.findall(refusal)) - {PROBE_METHOD}


def choose_dialect(
    wanted: Literal["auto", "current", "legacy"], methods: frozenset[str], version: str | None = None
) -> DialectName:
    """`auto` is current where the child has a `turn/start` that works, else legacy.

    `version` is that of a real Codex: before 0.79 its turns never ended.
    """
    if wanted != "auto":
        return wanted
    too_old = "newConversation" in methods and version is not None and _numbers(version) < (0, 79)
    return "current" if "turn/start" in methods and not too_old else "legacy"


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
