"""What Codex finds wrong with its configuration when it starts: its `configWarning` notifications. Pure."""

from __future__ import annotations

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


def read_config_warning(params: dict[str, Any]) -> ConfigWarning | None:
    """The warning in a notification; None for one that is not about the user's configuration."""
    summary, details = _line(params.get("summary")), _line(params.get("details"))
    return None if not summary or _SANDBOX in summary else ConfigWarning(summary, details)


def _line(value: object) -> str:
    return " ".join(value.split()) if isinstance(value, str) else ""
