"""Requests, answers, identities and messages, each by its own rules."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from api.cap.samples import OTHER_ID, REQUEST_ID, request_body, seed_example
from pydantic import ValidationError

from bridge.api.cap.envelope import (
    AgentRequest,
    ChatMessage,
    HealthCheckResponse,
    HealthCheckStatus,
    Identity,
    Role,
    ServiceRequest,
)


def test_identities() -> None:
    assert str(Identity(id="u", name="Ada")) == "Ada (u)"
    assert Identity.anonymous().dump() == {"id": "anonymous", "name": "Anonymous User", "role": "user"}


def test_a_request_without_lineage_is_its_own_root() -> None:
    request = AgentRequest.model_validate({"query": "", "request_id": OTHER_ID, "root_request_id": None})
    assert request.root_request_id == request.request_id == UUID(OTHER_ID)
    assert request.parent_request_id is None
    assert AgentRequest(query="").dump() == {"query": "", "files": [], "meta": {}}


def test_a_payload_without_an_id_has_the_envelopes() -> None:
    payload = ServiceRequest.model_validate(request_body()).payload
    assert str(payload.request_id) == str(payload.root_request_id) == REQUEST_ID
    named = ServiceRequest.model_validate(request_body(request_id=OTHER_ID)).payload
    assert str(named.request_id) == str(named.root_request_id) == OTHER_ID
    child = request_body(root_request_id=OTHER_ID, parent_request_id=OTHER_ID)
    found = ServiceRequest.model_validate(child).payload
    assert (str(found.request_id), str(found.root_request_id)) == (REQUEST_ID, OTHER_ID)


@pytest.mark.parametrize("root", [{}, {"root_request_id": None}])
def test_a_parent_needs_a_root(root: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        ServiceRequest.model_validate(request_body(parent_request_id=OTHER_ID, **root))
    (fault,) = caught.value.errors()
    assert (fault["loc"], fault["type"]) == (("payload",), "value_error")


def test_lineage_is_not_looked_through() -> None:
    lineage = dict.fromkeys(("request_id", "root_request_id", "parent_request_id"), OTHER_ID)
    assert AgentRequest.model_validate({"query": "", **lineage}).dump().items() >= lineage.items()


def test_files_are_any_texts() -> None:
    assert AgentRequest.model_validate({"query": "", "files": ["", "not a uri"]}).files == ["", "not a uri"]


def test_the_words_of_the_protocol() -> None:
    assert list(Role) == ["system", "user", "assistant", "tool"]
    assert list(HealthCheckStatus) == ["ok", "degraded", "maintenance"]


@pytest.mark.parametrize("role", ["developer", "USER", None])
def test_other_roles_are_none(role: Any) -> None:
    with pytest.raises(ValidationError):
        ChatMessage.model_validate({"role": role, "content": ""})


@pytest.mark.parametrize("content", [None, [], [{"type": "text", "text": ""}]])
def test_a_message_is_text_alone(content: Any) -> None:
    with pytest.raises(ValidationError):
        ChatMessage.model_validate({"role": "user", "content": content})


def test_messages_are_made_by_role() -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    when = {"timestamp": "2026-01-02T00:00:00Z"}
    assert ChatMessage.system("a", timestamp=at).dump() == {"role": "system", "content": "a", **when}
    assert ChatMessage.user("b", name="Ada").dump() == {"role": "user", "content": "b", "name": "Ada"}
    assert ChatMessage.assistant("c", timestamp=at).dump() == {"role": "assistant", "content": "c", **when}
    assert ChatMessage.tool("t1", "d").dump() == {"role": "tool", "content": "d", "tool_call_id": "t1"}
    with pytest.raises(ValueError, match="tool_call_id"):
        ChatMessage.tool("", "d")


@pytest.mark.parametrize("status", ["OK", "down", None])
def test_other_states_are_none(status: Any) -> None:
    with pytest.raises(ValidationError):
        HealthCheckResponse.model_validate(seed_example("HealthCheckResponse") | {"status": status})
