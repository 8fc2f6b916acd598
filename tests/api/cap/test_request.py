"""A ServiceRequest becomes a Turn: what it says is in it, what it may not say is refused, and nothing is echoed."""

from __future__ import annotations

from typing import Any

import pytest
from api.cap.samples import OTHER_ID, REQUEST_ID, request_body, seed_example

from bridge.api.cap.failures import InvalidMessage, failure_from
from bridge.api.cap.request import Assist, AssistRules, check_caller, parse_assist, read_request
from bridge.errors import BridgeError, Forbidden, InvalidRequest, ModelNotFound
from bridge.turn.items import Image, Message, Text
from bridge.turn.models import ModelChoice

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
    return parse_assist(read_request(body), resolve, rules, before or [], data=body)


def refused(**members: Any) -> BridgeError:
    """The error of a request with these members; it repeats nothing of them."""
    with pytest.raises(BridgeError) as caught:
        assist(**members)
    assert CANARY not in failure_from(caught.value, now=0).body.decode()
    return caught.value


def test_the_example_of_the_specification() -> None:
    read = parse_assist(read_request(seed_example("ServiceRequest")), resolve, RULES)
    assert str(read.request_id) == REQUEST_ID
    assert read.conversation == "conv_123"
    turn = read.turn
    assert turn.items == (Message("user", (Text("What is the status of the project?"),)),)
    assert (turn.model, turn.requested_model, turn.backend) == ("gpt-5.2", "gpt-5.2", "app-server")
    assert (turn.instructions, turn.effort, turn.tools, turn.stream) == (None, None, (), None)
    assert (read.events, read.timeout, dict(read.narrowed), read.ignored) == (frozenset(), 60, {}, ())


def test_files_follow_the_text() -> None:
    read = assist(files=[PNG, "https://example.org/a.jpg"])
    assert read.turn.items == (Message("user", (Text("Hello"), Image(PNG), Image("https://example.org/a.jpg"))),)


def test_files_alone_are_enough() -> None:
    assert assist(query=" ", files=[PNG]).turn.items == (Message("user", (Image(PNG),)),)


@pytest.mark.parametrize("query", ["", "  \n"])
def test_a_request_asks_something(query: str) -> None:
    error = refused(query=query)
    assert (error.code, error.http_status, error.param) == ("empty_query", 422, "payload.query")


def test_the_conversation_so_far_comes_first() -> None:
    before = [{"type": "message", "role": "assistant", "content": "Hi."}]
    items = assist(before=before).turn.items
    assert items == (Message("assistant", (Text("Hi."),)), Message("user", (Text("Hello"),)))


# Who, and in which conversation


@pytest.mark.parametrize(("given", "read"), [(None, None), ("", None), ("c-1", "c-1"), ("x" * 256, "x" * 256)])
def test_conversations(given: str | None, read: str | None) -> None:
    assert assist(conversation_id=given).conversation == read


@pytest.mark.parametrize("given", [f"{CANARY} x", "ü", "a\nb", "\0", "x" * 257])
def test_a_conversations_name_stands_in_a_header(given: str) -> None:
    error = refused(conversation_id=given)
    assert (error.code, error.http_status) == ("invalid_conversation_id", 422)


def test_a_conversation_belongs_to_its_user_and_session() -> None:
    def owner(**context: Any) -> str:
        return assist(context=context).owner

    other = {"id": "u2", "name": "Ada"}
    assert owner() == owner(user={"id": "u1", "name": "Other name", "role": "admin"})
    assert len({owner(), owner(user=other), owner(session_id="s2"), owner(user=other, session_id="s2")}) == 4


def test_a_request_belongs_to_one_session() -> None:
    assert assist(session_id="s1").conversation is None
    error = refused(session_id=CANARY)
    assert (error.code, error.http_status) == ("session_mismatch", 422)


def test_nobody_asks_in_another_name() -> None:
    request = read_request(request_body(context={"user": {"id": "u1", "name": "Ada", "role": "admin"}}))
    check_caller(request, None)
    check_caller(request, "u1")
    with pytest.raises(Forbidden) as caught:
        check_caller(request, "u2")
    assert (caught.value.code, caught.value.http_status) == ("forbidden", 403)


def test_agents_stand_for_models() -> None:
    assert assist(context={"agent": {"id": "coder", "name": ""}}).turn.requested_model == "gpt-5.2-codex"
    assert assist(context={"agent": None}).turn.requested_model == "gpt-5.2"
    error = refused(context={"agent": {"id": CANARY, "name": ""}})
    assert (error.code, error.http_status) == ("unknown_agent", 404)


# What meta asks for


def test_meta_is_in_the_turn() -> None:
    schema = {"type": "object"}
    read = assist(
        meta={
            "model": "gpt-5.2-high",
            "summary": "detailed",
            "instructions": "Be brief.",
            "output_schema": schema,
            "timezone": "Europe/Zurich",
            "locale": "de-CH",
            "timeout_ms": 1500,
            "events": ["tool_call", "metrics"],
        }
    )
    turn = read.turn
    assert (turn.requested_model, turn.effort, turn.summary) == ("gpt-5.2-high", "high", "detailed")
    assert turn.instructions == "Be brief.\n\nThe user's time zone is Europe/Zurich and locale is de-CH."
    assert turn.output_format is not None
    assert (turn.output_format.type, turn.output_format.schema) == ("json_schema", schema)
    assert (read.timeout, read.events) == (1.5, {"tool_call", "metrics"})


def test_what_is_asked_for_wins_over_what_a_name_implies() -> None:
    assert assist(meta={"model": "gpt-5.2-high", "effort": "low"}).turn.effort == "low"
    asked = assist(context={"agent": {"id": "coder", "name": ""}}, meta={"model": "gpt-5.2"})
    assert asked.turn.requested_model == "gpt-5.2"


def test_nobody_gets_more_time_than_there_is() -> None:
    assert assist(meta={"timeout_ms": 3_600_000}).timeout == 60


def test_a_model_that_is_not_here() -> None:
    error = refused(meta={"model": CANARY})
    assert (error.code, error.http_status, error.param) == ("model_not_found", 404, "payload.meta.model")


def test_the_operators_own_model_may_be_named_in_an_error() -> None:
    with pytest.raises(ModelNotFound):
        assist(rules=AssistRules("gone"))


def test_what_is_narrower_is_handed_on() -> None:
    wide = AssistRules("gpt-5.2", sandbox="workspace-write", approval_policy="on-request", cwd="/work")
    read = assist(rules=wide, meta={"sandbox": "read-only", "approval_policy": "never", "cwd": "a/b"})
    assert dict(read.narrowed) == {"sandbox": "read-only", "approval_policy": "never", "cwd": "/work/a/b"}


def test_names_that_nobody_reads_are_told() -> None:
    """Perhaps they are misspelt. Values are not told, and a name cannot break the header that it stands in."""
    body = request_body(conversationId=CANARY, meta={"theme": CANARY, "a,b\r\n": 1, "events": ["x"]})
    body["context"]["user"]["email"] = CANARY
    body["trace"] = body[""] = CANARY
    read = parse_assist(read_request(body), resolve, RULES, data=body)
    assert read.conversation is None
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
    assert len(parse_assist(read_request(many), resolve, RULES, data=many).ignored) == 32


# The same request again


def test_the_fingerprint_is_of_what_is_said() -> None:
    body = request_body(meta={"a": 1, "b": 2})
    same = request_body(meta={"b": 2, "a": 1}, files=[], unknown=1) | {"request_id": REQUEST_ID.upper()}
    prints = {parse_assist(read_request(each), resolve, RULES).fingerprint for each in (body, same)}
    assert len(prints) == 1
    assert assist(meta={"a": 1, "b": 3}).fingerprint not in prints


def test_the_trace_is_the_roots() -> None:
    own, other = REQUEST_ID.replace("-", ""), OTHER_ID.replace("-", "")
    assert assist().traceparent == f"00-{own}-{own[:16]}-01"
    child = assist(root_request_id=OTHER_ID, parent_request_id=OTHER_ID)
    assert child.traceparent == f"00-{other}-{own[:16]}-01"
    nil = "00000000-0000-0000-0000-000000000000"
    assert assist(request_id=nil).traceparent is None


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
def test_a_fault_is_told_by_its_place(change: dict[str, Any], loc: list[Any]) -> None:
    with pytest.raises(InvalidMessage) as caught:
        read_request(request_body() | change)
    failure = failure_from(caught.value, now=0)
    assert (failure.status, failure.error.code) == (422, "invalid_request")
    assert failure.error.details is not None
    (fault,) = failure.error.details["errors"]
    assert fault["loc"] == loc
    assert set(fault) == {"loc", "type"}
    assert CANARY not in failure.body.decode()


@pytest.mark.parametrize("body", [None, [], "x", 1, {}])
def test_what_is_no_request_at_all(body: Any) -> None:
    with pytest.raises(InvalidRequest):
        read_request(body)


def test_not_every_fault_is_told() -> None:
    with pytest.raises(InvalidMessage) as caught:
        read_request(request_body(files=[1] * 1000))
    assert len(caught.value.faults) == 20
