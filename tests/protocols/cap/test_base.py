"""What holds for every model: reading is lenient, writing is exact, nothing can be changed."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from protocols.cap.samples import OTHER_ID, REQUEST_ID, SEED, WHOLE, request_body, seed_example
from pydantic import TypeAdapter, ValidationError

from bridge.protocols.cap.models import (
    AgentRequest,
    ChatMessage,
    CitationItem,
    HealthCheckResponse,
    Identity,
    ProgressUpdate,
    ServiceRequest,
    ServiceResponse,
    SessionContext,
)
from bridge.protocols.cap.stream import MODELS

EVERYTHING = [
    pytest.param(name, data, id=f"{name}-{at}") for name, found in WHOLE.items() for at, data in enumerate(found)
]


def accepts(model: Any, data: Any) -> bool:
    """Whether JSON is read as a model."""
    try:
        TypeAdapter(model).validate_json(json.dumps(data))
    except ValidationError:
        return False
    return True


def test_every_model_has_samples() -> None:
    assert WHOLE.keys() == MODELS.keys()


@pytest.mark.parametrize(("name", "data"), EVERYTHING)
def test_writing_reverses_reading(name: str, data: Any) -> None:
    """From JSON and from objects, as JSON and as objects; in compact JSON and in the declared order."""
    adapter = MODELS[name]
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for message in (adapter.validate_json(text), adapter.validate_python(data)):
        assert message.dump() == data
        assert message.to_json() == text
        assert adapter.validate_json(message.to_json()) == message
        assert adapter.validate_python(message.dump()) == message


@pytest.mark.parametrize("name", SEED)
def test_the_examples_of_the_specification(name: str) -> None:
    """Each is read; all that it says is written again, and read again as the same."""
    adapter = MODELS[name.partition(" ")[0]]
    example = seed_example(name)
    message = adapter.validate_python(example)
    written = message.dump()
    if name == "ServiceRequest":
        for added in ("request_id", "root_request_id", "meta"):
            del written["payload"][added]
    assert written == example
    assert adapter.validate_json(message.to_json()) == message


@pytest.mark.parametrize(("name", "data"), EVERYTHING)
def test_unknown_members_are_dropped(name: str, data: Any) -> None:
    """At the top; free payloads keep what is theirs."""
    message = MODELS[name].validate_python(data | {"surprise": 1})
    assert message.dump() == (data | {"surprise": 1} if name in ("UserError", "ThoughtTrace") else data)


def test_unknown_members_are_dropped_at_every_level() -> None:
    body = request_body(context={"user": {"id": "u", "name": "n", "x": 1}, "x": 1}, x=1)
    assert "x" not in json.dumps(ServiceRequest.model_validate(body).dump()).replace("context", "")


def test_nulls_of_models_are_left_out_and_those_of_free_objects_stay() -> None:
    response = ServiceResponse.model_validate(
        seed_example("ServiceResponse") | {"metrics": None, "output": {"a": [None]}}
    )
    assert "metrics" not in response.dump()
    assert response.dump()["output"] == {"a": [None]}


def test_messages_are_immutable() -> None:
    with pytest.raises(ValidationError):
        Identity.anonymous().name = "other"


def test_the_hash_is_of_the_content() -> None:
    """SHA-256 of the JSON with sorted keys, non-ASCII as it is; some members may be left out."""
    one = Identity(id="ü", name="n", role="r")
    written = '{"id": "ü", "name": "n", "role": "r"}'
    assert one.compute_hash() == hashlib.sha256(written.encode()).hexdigest()
    assert one.compute_hash({"role"}) == Identity(id="ü", name="n").compute_hash()
    assert hash(one) == hash(Identity(id="ü", name="n", role="r"))


def test_the_input_is_not_modified() -> None:
    body = request_body(meta={"a": {"b": 1}}, root_request_id=None)
    before = json.dumps(body)
    request = ServiceRequest.model_validate(body)
    request.payload.meta["a"]["b"] = 2
    assert json.dumps(body) == before


# What each type of value accepts


@pytest.mark.parametrize("text", ["", "\0", "😀", " "])
def test_any_text_is_a_string(text: str) -> None:
    assert Identity.model_validate({"id": text, "name": "n"}).id == text


@pytest.mark.parametrize("value", [1, 1.5, True, None, [], {}])
def test_only_strings_are_strings(value: Any) -> None:
    assert not accepts(Identity, {"id": value, "name": "n"})


@pytest.mark.parametrize(
    "text", [OTHER_ID, OTHER_ID.replace("-", ""), f"urn:uuid:{OTHER_ID}", f"{{{OTHER_ID}}}", OTHER_ID.upper()]
)
def test_forms_of_a_uuid(text: str) -> None:
    request = AgentRequest.model_validate({"query": "", "request_id": text})
    assert request.dump()["request_id"] == OTHER_ID


@pytest.mark.parametrize("value", [1, "x", "", OTHER_ID[:-1], None, [OTHER_ID]])
def test_invalid_uuids(value: Any) -> None:
    assert not accepts(AgentRequest, {"query": "", "request_id": value})


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z"),
        ("2026-01-02 03:04:05+00:00", "2026-01-02T03:04:05Z"),
        ("2026-01-02T03:04:05.5Z", "2026-01-02T03:04:05.500000Z"),
        ("2026-01-02T03:04:05.1234567Z", "2026-01-02T03:04:05.123456Z"),
        ("2026-01-02T03:04:05+02:00", "2026-01-02T03:04:05+02:00"),
        ("2026-01-02T03:04:05", "2026-01-02T03:04:05Z"),  # without an offset it is UTC, and says so
        ("2026-01-02", "2026-01-02T00:00:00Z"),
        (1700000000, "2023-11-14T22:13:20Z"),
        (1700000000.5, "2023-11-14T22:13:20.500000Z"),
        (1700000000000, "2023-11-14T22:13:20Z"),
        ("1700000000", "2023-11-14T22:13:20Z"),
    ],
)
def test_forms_of_a_time(given: Any, written: str) -> None:
    message = ChatMessage.model_validate({"role": "user", "content": "", "timestamp": given})
    assert message.dump()["timestamp"] == written


@pytest.mark.parametrize("value", ["now", True, None, "2026-01-02T03:04:60Z", "2026-13-01", []])
def test_invalid_times(value: Any) -> None:
    assert not accepts(ChatMessage, {"role": "user", "content": "", "timestamp": value})


@pytest.mark.parametrize(("given", "read"), [(1, 1.0), ("1.5", 1.5), (True, 1.0), (0, 0.0), (1e300, 1e300)])
def test_forms_of_a_number(given: Any, read: float) -> None:
    health = seed_example("HealthCheckResponse") | {"uptime_seconds": given}
    assert HealthCheckResponse.model_validate_json(json.dumps(health)).uptime_seconds == read


@pytest.mark.parametrize("value", ["x", None, [], -1, float("nan"), float("inf"), "nan"])
def test_invalid_uptimes(value: Any) -> None:
    """Not a number, or below zero: no clock says so."""
    assert not accepts(HealthCheckResponse, seed_example("HealthCheckResponse") | {"uptime_seconds": value})


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("https://h", "https://h/"),
        ("HTTPS://Bücher.example/ä b", "https://xn--bcher-kva.example/%C3%A4%20b"),
        ("https://h:443/x", "https://h/x"),
        ("mailto:a@b", "mailto:a@b"),
        ("data:text/plain,x", "data:text/plain,x"),
        ("file:///a", "file:///a"),
    ],
)
def test_addresses_are_written_in_their_usual_form(given: str, written: str) -> None:
    item = CitationItem.model_validate({"source_id": "", "uri": given, "title": ""})
    assert item.dump()["uri"] == written


@pytest.mark.parametrize("value", ["example.org", "/a", "", None, 1])
def test_invalid_urls(value: Any) -> None:
    assert not accepts(CitationItem, {"source_id": "", "uri": value, "title": ""})


@pytest.mark.parametrize("value", ["RUNNING", "done", None, 1])
def test_enum_values_are_exact(value: Any) -> None:
    assert not accepts(ProgressUpdate, {"label": "", "status": value})


@pytest.mark.parametrize(
    ("model", "data", "member"),
    [
        (AgentRequest, {"query": ""}, "files"),
        (AgentRequest, {"query": ""}, "meta"),
        (ChatMessage, {"role": "user", "content": ""}, "timestamp"),
    ],
)
def test_null_is_not_the_same_as_absent(model: Any, data: Any, member: str) -> None:
    assert accepts(model, data)
    assert not accepts(model, data | {member: None})


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (ServiceRequest, request_body()),
        (SessionContext, request_body()["context"]),
        (Identity, {"id": "", "name": ""}),
        (AgentRequest, {"query": ""}),
        (ServiceResponse, {"request_id": REQUEST_ID, "created_at": 0, "output": {}}),
        (HealthCheckResponse, seed_example("HealthCheckResponse")),
        (ChatMessage, {"role": "user", "content": ""}),
    ],
)
def test_every_required_member_is_required(model: Any, data: dict[str, Any]) -> None:
    assert accepts(model, data)
    for name in data:
        assert not accepts(model, {other: value for other, value in data.items() if other != name})


# The JSON itself


@pytest.mark.parametrize(
    "text",
    [
        b'\xef\xbb\xbf{"id":"","name":""}',
        b'{"id":"","name":""} x',
        b'{"id":"","name":"",}',
        b'{"id":"\\ud800","name":""}',
        b'{"id":"\xff","name":""}',
        b'{"id":"","name":"","role":' + b"[" * 300 + b"]" * 300 + b"}",
        b"",
        b"null",
        b"[]",
    ],
)
def test_invalid_messages(text: bytes) -> None:
    with pytest.raises(ValidationError):
        Identity.model_validate_json(text)


def test_of_duplicate_members_the_last_counts() -> None:
    assert Identity.model_validate_json('{"id":"a","id":"b","name":""}').id == "b"


def test_numbers_of_any_size_are_kept() -> None:
    response = ServiceResponse.model_validate_json(
        f'{{"request_id":"{REQUEST_ID}","created_at":0,"output":{{"n":{10**30}}}}}'
    )
    assert f'"n":{10**30}' in response.to_json()
