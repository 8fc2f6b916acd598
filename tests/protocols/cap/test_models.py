"""Requests, answers, identities, messages and events for a user interface, each by its own rules."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from protocols.cap.samples import OTHER_ID, PAYLOADS, REQUEST_ID, presented, request_body, seed_example
from pydantic import ValidationError

from bridge.protocols.cap.models import (
    EVENT,
    AgentRequest,
    ChatMessage,
    CitationBlock,
    CitationEvent,
    HealthCheckResponse,
    Identity,
    MarkdownEvent,
    MediaEvent,
    ProgressEvent,
    ServiceRequest,
    ThoughtEvent,
    ThoughtTrace,
    UserError,
    UserErrorEvent,
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


def test_lineage_is_not_checked_for_cycles() -> None:
    lineage = dict.fromkeys(("request_id", "root_request_id", "parent_request_id"), OTHER_ID)
    assert AgentRequest.model_validate({"query": "", **lineage}).dump().items() >= lineage.items()


def test_files_are_any_texts() -> None:
    assert AgentRequest.model_validate({"query": "", "files": ["", "not a uri"]}).files == ["", "not a uri"]


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_roles(role: str) -> None:
    assert ChatMessage.model_validate({"role": role, "content": ""}).role == role


@pytest.mark.parametrize("role", ["developer", "USER", None])
def test_other_roles_are_refused(role: Any) -> None:
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


@pytest.mark.parametrize("status", ["ok", "degraded", "maintenance"])
def test_states(status: str) -> None:
    health = HealthCheckResponse.model_validate(seed_example("HealthCheckResponse") | {"status": status})
    assert health.status == status


@pytest.mark.parametrize("status", ["OK", "down", None])
def test_other_states_are_refused(status: Any) -> None:
    with pytest.raises(ValidationError):
        HealthCheckResponse.model_validate(seed_example("HealthCheckResponse") | {"status": status})


CLASSES = {
    "citation_block": CitationEvent,
    "progress_indicator": ProgressEvent,
    "media_carousel": MediaEvent,
    "markdown_block": MarkdownEvent,
    "user_error": UserErrorEvent,
    "thought_trace": ThoughtEvent,
}


@pytest.mark.parametrize("kind", CLASSES)
def test_the_type_decides(kind: str) -> None:
    assert type(EVENT.validate_python(presented(kind, PAYLOADS[kind]))) is CLASSES[kind]


@pytest.mark.parametrize("kind", CLASSES)
def test_an_event_may_come_without_an_id_and_a_time(kind: str) -> None:
    event = {"type": kind, "data": PAYLOADS[kind]}
    assert EVENT.validate_python(event).dump() == event
    for member in ("id", "timestamp"):
        with pytest.raises(ValidationError, match="null is not allowed; leave it out"):
            EVENT.validate_python(event | {member: None})


@pytest.mark.parametrize("kind", ["tool_call", "metrics", "THOUGHT_TRACE", "", None])
def test_other_types_are_refused(kind: Any) -> None:
    with pytest.raises(ValidationError):
        EVENT.validate_python(presented(kind, {"thought": ""}))


@pytest.mark.parametrize("kind", ["citation_block", "progress_indicator", "media_carousel", "markdown_block"])
def test_a_payload_belongs_to_its_type(kind: str) -> None:
    """An empty one, or that of another type, is a fault; so the location of a fault includes `data`."""
    others = [data for other, data in PAYLOADS.items() if other != kind and not (data.get("items"))]
    for data in [{}, *others]:
        with pytest.raises(ValidationError) as caught:
            EVENT.validate_python(presented(kind, data))
        assert caught.value.errors()[0]["loc"][:2] == (kind, "data")


@pytest.mark.parametrize("kind", ["user_error", "thought_trace"])
@pytest.mark.parametrize(
    "data",
    [{}, {"content": "x", "more": 1}, {"label": "x", "status": "running", "more": 1}, {"items": [], "more": None}],
)
def test_free_payloads_lose_nothing(kind: str, data: dict[str, Any]) -> None:
    """Also where they look like a payload of another type."""
    assert EVENT.validate_python(presented(kind, data)).dump()["data"] == data


@pytest.mark.parametrize("percent", [0, 1, 0.5, None, "0.5"])
def test_progress_is_a_fraction(percent: Any) -> None:
    EVENT.validate_python(
        presented("progress_indicator", {"label": "", "status": "failed", "progress_percent": percent})
    )


@pytest.mark.parametrize("percent", [1.5, -0.1, 50, "x", float("nan")])
def test_invalid_progress(percent: Any) -> None:
    data = {"label": "", "status": "failed", "progress_percent": percent}
    with pytest.raises(ValidationError):
        EVENT.validate_python(presented("progress_indicator", data))


def test_the_location_of_a_fault() -> None:
    with pytest.raises(ValidationError) as caught:
        EVENT.validate_python(presented("citation_block", {"items": [{"source_id": "", "uri": "x", "title": ""}]}))
    assert caught.value.errors()[0]["loc"] == ("citation_block", "data", "items", 0, "uri")


def test_an_instance_is_checked_against_its_type() -> None:
    with pytest.raises(ValidationError):
        EVENT.validate_python({"type": "markdown_block", "data": CitationBlock(items=[])})


def test_free_payloads_as_models() -> None:
    error = UserError(message="Not now", code=429, domain="llm", retryable=True)
    event = UserErrorEvent(type="user_error", data=error)  # type: ignore[arg-type]
    assert event.data == {"message": "Not now", "code": 429, "domain": "llm", "retryable": True}
    assert UserError.model_validate(event.data) == error
    thought = ThoughtTrace.model_validate({"thought": "Hm.", "kind": "summary"})
    event = ThoughtEvent(type="thought_trace", data=thought)  # type: ignore[arg-type,assignment]
    assert event.data == {"thought": "Hm.", "kind": "summary"}


@pytest.mark.parametrize(("given", "read"), [(429, 429), ("429", 429), ("too_many", "too_many"), (None, None)])
def test_the_code_of_a_user_error(given: Any, read: Any) -> None:
    """A number, also when it is written as a text; a word is read as one."""
    assert UserError.model_validate({"message": "", "code": given}).code == read


def test_a_user_error_is_the_systems_unless_it_says_otherwise() -> None:
    assert UserError(message="").dump() == {"message": "", "domain": "system", "retryable": False}


@pytest.mark.parametrize("domain", ["client", "system", "llm", "tool", "security"])
def test_the_domain_of_a_user_error(domain: str) -> None:
    assert UserError.model_validate({"message": "", "domain": domain}).domain == domain
