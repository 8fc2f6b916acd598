"""What the operator decides about CAP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from bridge.api.cap.fold import ConversationState
from bridge.api.cap.rules import AssistRules
from bridge.config import Settings

RESUME_GRACE = 30.0


@dataclass(frozen=True, slots=True)
class CapOptions:
    """The settings of CAP. `rules` lack the default model, which the backends may have to be asked for."""

    rules: AssistRules = field(default_factory=lambda: AssistRules(""))
    users: Mapping[str, str] = field(default_factory=dict)
    """Who the clients are, by the labels of their keys; where there are none, nobody knows."""
    grace: float = RESUME_GRACE
    """Seconds for which a stream waits for a client that has gone, and is kept after its end."""
    streams_by_default: bool = False
    """Whether a client that does not say what it accepts gets a stream."""
    strict: bool = False
    """Whether a conversation must be known to be continued; else its name begins one."""
    agent_id: UUID = field(default_factory=uuid4)
    recorded_state: ConversationState | None = None
    """Whether the conversation of a request that is played was new; None for requests that are not."""
    keeps_empty: bool = False
    """Whether pieces without text are told, as they stand in a recording that was redacted."""

    def caller(self, key: str) -> str | None:
        """Who the client with this key is; None when that is not known, and "" for one that is nobody."""
        return self.users.get(key, "") if self.users else None


def cap_options(settings: Settings) -> CapOptions:
    """The options that the settings name."""
    rules = AssistRules(
        settings.cap_model or "",
        settings.cap_agents.get,
        settings.sandbox_mode,
        settings.approval_policy,
        str(settings.workdir),
        settings.turn_timeout,
    )
    return CapOptions(
        rules,
        settings.cap_users,
        settings.cap_grace,
        settings.cap_stream_default,
        settings.cap_strict,
        settings.cap_agent_id or uuid4(),
    )
