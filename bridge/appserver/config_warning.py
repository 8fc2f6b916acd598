"""What Codex finds wrong with its configuration when it starts: its `configWarning` notifications. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

METHOD = "configWarning"
INVALID = "Invalid configuration; using defaults."
_SANDBOX = "bubblewrap"
"""Part of a warning at every start: Codex recommends a sandbox program, although it bundles one."""


@dataclass(frozen=True, slots=True)
class ConfigWarning:
    """One warning, each text on one line."""

    summary: str
    details: str = ""

    def __str__(self) -> str:
        return f"{self.summary} {self.details}".rstrip()

    @property
    def is_fatal(self) -> bool:
        """Whether Codex ignores the whole of config.toml: its providers, its model, everything."""
        return self.summary.startswith(INVALID.partition(";")[0])


def in_users_words(warning: ConfigWarning, home: str, *, is_ours: bool) -> ConfigWarning:
    """The warning with `config.toml` in place of its path in the child's `home`.

    Where that home is the bridge's own, lines and columns are left out as well: the user's file has others.
    """
    place = re.compile(re.escape(f"{home}/config.toml") + (r"(?::\d+)*" if is_ours else ""))
    return ConfigWarning(place.sub("config.toml", warning.summary), place.sub("config.toml", warning.details))


def read_config_warning(params: dict[str, Any]) -> ConfigWarning | None:
    """The warning in a notification; None for one that is not about the user's configuration."""
    summary, details = _line(params.get("summary")), _line(params.get("details"))
    return None if not summary or _SANDBOX in summary else ConfigWarning(summary, details)


def _line(value: object) -> str:
    return " ".join(value.split()) if isinstance(value, str) else ""
