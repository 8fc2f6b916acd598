"""A ServiceRequest becomes a Turn: invalid members are refused, and no value is repeated in an error."""

from __future__ import annotations

from typing import Any

import pytest
from protocols.cap.samples import OTHER_ID, REQUEST_ID, request_body, seed_example

from bridge.core.items import Image, Message, Text
from bridge.core.models import ModelChoice
from bridge.errors import BridgeError, Forbidden, InvalidRequest, ModelNotFound
from bridge.protocols.cap import AssistRules
from bridge.protocols.cap.failures import InvalidMessage, failure_from
from bridge.protocols.cap.request import (
    MAX_DATA_URL,
    MAX_FILES,
    Assist,
    check_caller,
    conversation_of,
    owner_of,
    parse_assist,
    parse_files,
    parse_service_request,
    time_limit,
)

CANARY = "canary-7f3a"
PNG = "data:image/png;base64,iVBORw0KGgo="
AGENTS = {"coder": "gpt-5.2-codex"}
RULES = AssistRules("gpt-5.2", AGENTS.get, max_timeout=60)


def resolve(name: str) -> ModelChoice:
    """Knows a few models; one implies an effort."""
    if name not in ("gpt-5.2", "gpt-5.2-codex", "gpt-5.2-high"):
        raise ModelNotFound(name, ["gpt-5.2"])
    return ModelChoice(name, "gpt-5.2", "high" if name.endswith("-high") else None, "app-server")


def assist(*, rules: AssistRules = RULES, before: list[dict[str, Any]] | None = None, **members: Any) -> Assist:
    """The request with these members, read."""
    body = request_body(**members)
    return parse_assist(parse_service_request(body), resolve, rules, before or [], data=body)


def refused(**members: Any) -> BridgeError:
    """The error of a request with these members; it repeats nothing of them."""
    with pytest.raises(BridgeError) as caught:
        assist(**members)
    assert CANARY not in failure_from(caught.value, now=0).body.decode()
    return caught.value


def test_the_example_of_the_specification() -> None:
    request = parse_service_request(seed_example("ServiceRequest"))
    assert str(request.request_id) == REQUEST_ID
    assert conversation_of(request) == "conv_123"
    assert time_limit(request, RULES) == 60
    read = parse_assist(request, resolve, RULES)
    turn = read.turn
    assert turn.items == (Message("user", (Text("What is the status of the project?"),)),)
    assert (turn.model, turn.requested_model, turn.backend) == ("gpt-5.2", "gpt-5.2", "app-server")
    assert (turn.instructions, turn.effort, turn.tools, turn.stream) == (None, None, (), None)
    assert (read.events, dict(turn.narrowed), read.ignored) == (frozenset(), {}, ())


def test_files_follow_the_text() -> None:
    read = assist(files=[PNG, "https://example.org/a.jpg"])
    assert read.turn.items == (Message("user", (Text("Hello"), Image(PNG), Image("https://example.org/a.jpg"))),)


def test_files_alone_are_enough() -> None:
    assert assist(query=" ", files=[PNG]).turn.items == (Message("user", (Image(PNG),)),)


@pytest.mark.parametrize("query", ["", "  \n"])
def test_an_empty_query_is_refused(query: str) -> None:
    error = refused(query=query)
    assert (error.code, error.http_status, error.param) == ("empty_query", 422, "payload.query")


def test_the_conversation_so_far_comes_first() -> None:
    before = [{"type": "message", "role": "assistant", "content": "Hi."}]
    items = assist(before=before).turn.items
    assert items == (Message("assistant", (Text("Hi."),)), Message("user", (Text("Hello"),)))


# Who, and in which conversation


@pytest.mark.parametrize(("given", "read"), [(None, None), ("", None), ("c-1", "c-1"), ("x" * 256, "x" * 256)])
def test_conversations(given: str | None, read: str | None) -> None:
    assert conversation_of(parse_service_request(request_body(conversation_id=given))) == read


@pytest.mark.parametrize("given", [f"{CANARY} x", "ü", "a\nb", "\0", "x" * 257])
def test_a_conversation_id_must_fit_in_a_header(given: str) -> None:
    error = refused(conversation_id=given)
    assert (error.code, error.http_status) == ("invalid_conversation_id", 422)


def test_a_conversation_belongs_to_its_user_and_session() -> None:
    def owner(**context: Any) -> str:
        return owner_of(parse_service_request(request_body(context=context)).context)

    other = {"id": "u2", "name": "Ada"}
    assert owner() == owner(user={"id": "u1", "name": "Other name", "role": "admin"})
    assert len({owner(), owner(user=other), owner(session_id="s2"), owner(user=other, session_id="s2")}) == 4


def test_a_request_belongs_to_one_session() -> None:
    assert conversation_of(parse_service_request(request_body(session_id="s1"))) is None
    error = refused(session_id=CANARY)
    assert (error.code, error.http_status) == ("session_mismatch", 422)


def test_a_request_in_another_users_name_is_refused() -> None:
    request = parse_service_request(request_body(context={"user": {"id": "u1", "name": "Ada", "role": "admin"}}))
    check_caller(request, None)
    check_caller(request, "u1")
    with pytest.raises(Forbidden) as caught:
        check_caller(request, "u2")
    assert (caught.value.code, caught.value.http_status) == ("forbidden", 403)


def test_agents_choose_models() -> None:
    assert assist(context={"agent": {"id": "coder", "name": ""}}).turn.requested_model == "gpt-5.2-codex"
    assert assist(context={"agent": None}).turn.requested_model == "gpt-5.2"
    error = refused(context={"agent": {"id": CANARY, "name": ""}})
    assert (error.code, error.http_status) == ("unknown_agent", 404)


# What meta asks for


def test_meta_is_in_the_turn() -> None:
    schema = {"type": "object"}
    meta = {
        "model": "gpt-5.2-high",
        "summary": "detailed",
        "instructions": "Be brief.",
        "output_schema": schema,
        "timezone": "Europe/Zurich",
        "locale": "de-CH",
        "timeout_ms": 1500,
        "events": ["tool_call", "metrics"],
    }
    read = assist(meta=meta)
    turn = read.turn
    assert (turn.requested_model, turn.effort, turn.summary) == ("gpt-5.2-high", "high", "detailed")
    assert turn.instructions == "Be brief.\n\nThe user's time zone is Europe/Zurich and locale is de-CH."
    assert turn.output_format is not None
    assert (turn.output_format.type, turn.output_format.schema) == ("json_schema", schema)
    assert read.events == {"tool_call", "metrics"}
    assert time_limit(parse_service_request(request_body(meta=meta)), RULES) == 1.5


def test_explicit_values_win_over_implied_ones() -> None:
    assert assist(meta={"model": "gpt-5.2-high", "effort": "low"}).turn.effort == "low"
    read = assist(context={"agent": {"id": "coder", "name": ""}}, meta={"model": "gpt-5.2"})
    assert read.turn.requested_model == "gpt-5.2"


def test_the_operators_time_limit_holds() -> None:
    request = parse_service_request(request_body(meta={"timeout_ms": 3_600_000}))
    assert time_limit(request, RULES) == 60


def test_an_unknown_model_in_meta() -> None:
    error = refused(meta={"model": CANARY})
    assert (error.code, error.http_status, error.param) == ("model_not_found", 404, "payload.meta.model")


def test_the_operators_own_model_may_be_named_in_an_error() -> None:
    with pytest.raises(ModelNotFound):
        assist(rules=AssistRules("gone"))


def test_narrower_values_are_passed_on() -> None:
    wide = AssistRules("gpt-5.2", sandbox="workspace-write", approval_policy="on-request", cwd="/work")
    read = assist(rules=wide, meta={"sandbox": "read-only", "approval_policy": "never", "cwd": "a/b"})
    assert dict(read.turn.narrowed) == {"sandbox": "read-only", "approval_policy": "never", "cwd": "/work/a/b"}


def test_unknown_names_are_reported() -> None:
    """Perhaps they are misspelt. Values are not repeated, and a name cannot break the header that it stands in."""
    body = request_body(conversationId=CANARY, meta={"theme": CANARY, "a,b\r\n": 1, "events": ["x"]})
    body["context"]["user"]["email"] = CANARY
    body["trace"] = body[""] = CANARY
    request = parse_service_request(body)
    read = parse_assist(request, resolve, RULES, data=body)
    assert conversation_of(request) is None
    assert read.ignored == (
        "trace",
        "?",
        "payload.conversationId",
        "context.user.email",
        "meta.theme",
        "meta.a?b??",
        "meta.events:x",
    )
    many = request_body(meta={f"name{number}": 1 for number in range(1000)})
    assert len(parse_assist(parse_service_request(many), resolve, RULES, data=many).ignored) == 32


# The same request again


def test_the_hash_depends_on_content_only() -> None:
    body = request_body(meta={"a": 1, "b": 2})
    same = request_body(meta={"b": 2, "a": 1}, files=[], unknown=1) | {"request_id": REQUEST_ID.upper()}
    prints = {parse_service_request(each).compute_hash() for each in (body, same)}
    assert len(prints) == 1
    assert parse_service_request(request_body(meta={"a": 1, "b": 3})).compute_hash() not in prints


# Bodies that are none


@pytest.mark.parametrize(
    ("change", "loc"),
    [
        ({"request_id": CANARY}, ["request_id"]),
        ({"context": CANARY}, ["context"]),
        ({"payload": {"query": 1, "meta": {CANARY: CANARY}}}, ["payload", "query"]),
        ({"payload": {"query": "", "files": [CANARY, 1]}}, ["payload", "files", 1]),
        ({"payload": {"query": "", "parent_request_id": OTHER_ID}}, ["payload"]),
    ],
)
def test_a_fault_is_reported_by_its_location(change: dict[str, Any], loc: list[Any]) -> None:
    with pytest.raises(InvalidMessage) as caught:
        parse_service_request(request_body() | change)
    failure = failure_from(caught.value, now=0)
    assert (failure.status, failure.error.code) == (422, "invalid_request")
    assert failure.error.details is not None
    (fault,) = failure.error.details["errors"]
    assert fault["loc"] == loc
    assert set(fault) == {"loc", "type"}
    assert CANARY not in failure.body.decode()


@pytest.mark.parametrize("body", [None, [], "x", 1, {}])
def test_bodies_that_are_not_requests(body: Any) -> None:
    with pytest.raises(InvalidRequest):
        parse_service_request(body)


def test_the_number_of_reported_faults_is_limited() -> None:
    with pytest.raises(InvalidMessage) as caught:
        parse_service_request(request_body(files=[1] * 1000))
    assert len(caught.value.faults) == 20


@pytest.mark.parametrize(
    "file",
    [
        PNG,
        "data:image/svg+xml;base64,PHN2Zz4=",
        "DATA:image/PNG;base64,iVBORw0KGgo=",
        "https://example.org/a.png",
        "http://example.org/a/b.JPEG?size=1#x",
        "https://[2001:db8::1]/a.webp",
    ],
)
def test_images_are_taken_as_they_are(file: str) -> None:
    assert parse_files([file]) == (Image(file),)


def test_their_order_is_kept() -> None:
    files = [PNG, "https://example.org/b.gif", PNG]
    assert [image.url for image in parse_files(files)] == files


@pytest.mark.parametrize(
    "file",
    [
        "",
        "report.pdf",
        "/etc/passwd",
        "file:///etc/passwd",
        "ftp://example.org/a.png",
        "javascript:alert(1)//.png",
        "s3://bucket/a.png",
        "https://example.org/report.pdf",
        "https://example.org/",
        "https://a.png",
        "https:///a.png",
        "https://",
        "https://[::1/a.png",
        "https://user:secret@example.org/a.png",
        "https://example.org/a b.png",
        "https://example.org/a\r\nx.png",
        "https://example.org/" + "x" * 9000 + ".png",
        "data:text/html;base64,PGI+",
        "data:image/png,raw",
        "data:audio/wav;base64,UklGRg==",
        "data:;base64,AA==",
        "data:image/png;base64," + "A" * MAX_DATA_URL,
        "data:image/png;base64,",
        "data:image/png;base64,iVBORw0KGgo",
        "data:image/png;base64,iVBORw0KGgp=",
        "data:image/png;base64,iVBO Rw0KGgo=",
        "data:image/png;base64,iVBORw0KGgo=!",
        "data:image/png;base64,not base64 at all",
        "data:image/png;base64,é",
        "data:image/png;base64,iVBORw0KGgo%3D",
        "data:image/png;base64,_-_-",
    ],
)
def test_anything_else_is_refused_by_its_index(file: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_files([PNG, file])
    error = caught.value
    assert (error.code, error.http_status, error.param) == ("unsupported_file", 422, "payload.files[1]")
    assert "1" in error.message
    assert "passwd" not in error.message
    assert "secret" not in error.message


def test_there_is_a_limit() -> None:
    assert len(parse_files([PNG] * MAX_FILES)) == MAX_FILES
    with pytest.raises(InvalidRequest) as caught:
        parse_files([PNG] * (MAX_FILES + 1))
    assert (caught.value.code, caught.value.http_status) == ("too_many_files", 422)
