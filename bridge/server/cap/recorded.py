"""A recorded CAP request, asked again: what it was allowed then, and why it was refused."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args, get_type_hints

from bridge.api.cap.fold import ConversationState
from bridge.api.cap.rules import AssistRules
from bridge.backends.replay.backend import recorded_end
from bridge.protolog.assist import wishes_of
from bridge.protolog.recording import Recording

_OF_THE_MOMENT = frozenset(
    {
        "conversation_not_found",
        "forbidden",
        "model_not_found",
        "no_recording",
        "request_id_conflict",
        "turn_busy",
        "unknown_agent",
    }
)
"""Refusals that depend on what the operator had set, or on what else was there."""


def recorded_rules(rules: AssistRules, recording: Recording) -> AssistRules:
    """Rules that allow what this request was allowed: nothing is run, so they need not be today's."""
    model = str((recording.start or {}).get("requested_model") or "unknown")
    asked = wishes_of(recording.body).get("approval_policy")
    policies = get_args(get_type_hints(AssistRules)["approval_policy"])
    return replace(
        rules,
        default_model=model,
        agent_model=lambda _: model,
        sandbox="danger-full-access",
        approval_policy=next((policy for policy in policies if policy == asked), rules.approval_policy),
        cwd="/",
    )


def recorded_state(recording: Recording) -> ConversationState | None:
    """Whether the recorded answer continued its conversation; None where the log does not say."""
    told = recording.client_header("x-conversation")
    return next((state for state in get_args(ConversationState) if state == told), None)


def refuse_again(recording: Recording) -> None:
    """Raise why a request was refused before its turn began, unless that was its own fault and is found out anew."""
    if recording.start is None and recording.end is not None:
        error = recorded_end(recording).error
        if error is not None and (error.kind != "invalid_request_error" or error.code in _OF_THE_MOMENT):
            raise error
