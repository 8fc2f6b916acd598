"""What an operator decides about requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class AssistRules:
    """What the operator has set. `agent_model` gives the model of an agent's id, or None for one that is not here."""

    default_model: str
    agent_model: Callable[[str], str | None] = lambda _: None
    sandbox: Literal["read-only", "workspace-write", "danger-full-access"] = "read-only"
    approval_policy: Literal["untrusted", "on-failure", "on-request", "never"] = "never"
    cwd: str | None = None
    max_timeout: float = 3600
