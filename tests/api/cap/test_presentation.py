"""Events for a user interface: the type decides what the payload is."""

from __future__ import annotations

from typing import Any

import pytest
from api.cap.samples import PAYLOADS, presented
from pydantic import ValidationError

from bridge.api.cap.presentation import (
    EVENT,
    CitationBlock,
    CitationEvent,
    ErrorDomain,
    MarkdownEvent,
    MediaEvent,
    PresentationEventType,
    ProgressEvent,
    ThoughtEvent,
    ThoughtTrace,
    UserError,
    UserErrorEvent,
)

CLASSES = {
    "citation_block": CitationEvent,
    "progress_indicator": ProgressEvent,
    "media_carousel": MediaEvent,
    "markdown_block": MarkdownEvent,
    "user_error": UserErrorEvent,
    "thought_trace": ThoughtEvent,
}


def test_the_words_of_the_protocol() -> None:
    assert set(PresentationEventType) == set(CLASSES)
    assert list(ErrorDomain) == ["client", "system", "llm", "tool", "security"]


@pytest.mark.parametrize("kind", CLASSES)
def test_the_type_decides(kind: str) -> None:
    assert type(EVENT.validate_python(presented(kind, PAYLOADS[kind]))) is CLASSES[kind]


@pytest.mark.parametrize("kind", CLASSES)
def test_an_event_may_come_without_an_id_and_a_time(kind: str) -> None:
    event = {"type": kind, "data": PAYLOADS[kind]}
    assert EVENT.validate_python(event).dump() == event
    for member in ("id", "timestamp"):
        with pytest.raises(ValidationError):
            EVENT.validate_python(event | {member: None})


@pytest.mark.parametrize("kind", ["tool_call", "metrics", "THOUGHT_TRACE", "", None])
def test_other_types_are_none(kind: Any) -> None:
    with pytest.raises(ValidationError):
        EVENT.validate_python(presented(kind, {"thought": ""}))


@pytest.mark.parametrize("kind", ["citation_block", "progress_indicator", "media_carousel", "markdown_block"])
def test_a_payload_belongs_to_its_type(kind: str) -> None:
    """An empty one, or that of another type, is a fault; so the place of a fault is told from `data` on."""
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
def test_what_is_no_progress(percent: Any) -> None:
    data = {"label": "", "status": "failed", "progress_percent": percent}
    with pytest.raises(ValidationError):
        EVENT.validate_python(presented("progress_indicator", data))


def test_the_place_of_a_fault() -> None:
    with pytest.raises(ValidationError) as caught:
        EVENT.validate_python(presented("citation_block", {"items": [{"source_id": "", "uri": "x", "title": ""}]}))
    assert caught.value.errors()[0]["loc"] == ("citation_block", "data", "items", 0, "uri")


def test_an_instance_is_checked_against_its_type() -> None:
    with pytest.raises(ValidationError):
        EVENT.validate_python({"type": "markdown_block", "data": CitationBlock(items=[])})


def test_free_payloads_as_models() -> None:
    error = UserError(message="Not now", code=429, domain=ErrorDomain.LLM, retryable=True)
    event = UserErrorEvent(type=PresentationEventType.USER_ERROR, data=error)  # type: ignore[arg-type]
    assert event.data == {"message": "Not now", "code": 429, "domain": "llm", "retryable": True}
    assert UserError.model_validate(event.data) == error
    thought = ThoughtTrace.model_validate({"thought": "Hm.", "kind": "summary"})
    event = ThoughtEvent(type=PresentationEventType.THOUGHT_TRACE, data=thought)  # type: ignore[arg-type,assignment]
    assert event.data == {"thought": "Hm.", "kind": "summary"}


@pytest.mark.parametrize(("given", "read"), [(429, 429), ("429", 429), ("too_many", "too_many"), (None, None)])
def test_the_code_of_a_user_error(given: Any, read: Any) -> None:
    """A number, also when it is written as a text; a word is read as one."""
    assert UserError.model_validate({"message": "", "code": given}).code == read


def test_a_user_error_is_the_systems_unless_it_says_otherwise() -> None:
    assert UserError(message="").dump() == {"message": "", "domain": "system", "retryable": False}
