"""The Coreason Agent Protocol. Only the operator's settings are here, so that they load without the models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal
from uuid import UUID, uuid4

if TYPE_CHECKING:
    from bridge.settings import Settings

ConversationState = Literal["new", "continued"]
"""Whether the conversation of a request has earlier turns."""

RESUME_GRACE = 30.0


@dataclass(frozen=True, slots=True)
class AssistRules:
    """What requests may ask for. `agent_model` maps an agent's id to its model, or to None if it is unknown."""

    default_model: str
    agent_model: Callable[[str], str | None] = lambda _: None
    sandbox: Literal["read-only", "workspace-write", "danger-full-access"] = "read-only"
    approval_policy: Literal["untrusted", "on-failure", "on-request", "never"] = "never"
    cwd: str | None = None
    max_timeout: float = 3600


@dataclass(frozen=True, slots=True)
class CapOptions:
    """The settings of CAP. `rules` have no default model if the backends must be asked for it."""

    rules: AssistRules = field(default_factory=lambda: AssistRules(""))
    users: Mapping[str, str] = field(default_factory=dict)
    """User ids by the labels of keys. Empty: the user's id in a request is not checked."""
    grace: float = RESUME_GRACE
    """Seconds for which a stream waits for a client that has disconnected, and is kept after its end."""
    streams_by_default: bool = False
    """Whether a client without a preference in `Accept` gets a stream."""
    strict: bool = False
    """Whether a conversation must exist to be continued; otherwise an unknown id begins one."""
    agent_id: UUID = field(default_factory=uuid4)

    def caller(self, key: str) -> str | None:
        """The user id of the client with this key; None if users are not checked, "" if the key has no user."""
        return self.users.get(key, "") if self.users else None


def cap_options(settings: Settings) -> CapOptions:
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
